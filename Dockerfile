# The app for Cloud Run. How to deploy it: docs/howto/deploy.md. Not used by `make run`.
FROM python:3.13-slim

# Logs appear when they are written, not when a buffer is full.
ENV PYTHONUNBUFFERED=1
# Cloud Run sets PORT; gunicorn listens there on every interface if it is set.
ENV PORT=8080

WORKDIR /app

# First the requirements: they change less often than the code. Only what the lock file's
# hashes name gets in, and nothing is built from source.
COPY requirements.txt .
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes --only-binary=:all: \
    -r requirements.txt

COPY main.py ./
COPY handlers handlers
COPY models models
COPY pipelines pipelines
COPY rollforward rollforward
COPY static static
COPY templates templates
# Compiled once here, for the user below may not write.
RUN python -m compileall -q .

# Nobody in particular: the app writes no file.
RUN useradd --system --uid 10001 --no-create-home app
USER 10001

# Exec form, so that SIGTERM reaches gunicorn: it lets running requests finish. Cloud Run kills
# after 10 seconds. 32 threads: keep --concurrency of the service at 32 or below. No timeout:
# Cloud Run has its own. Why threads and the rest: app.yaml.
CMD ["gunicorn", "main:serve()", "--config", "python:rollforward.gunicorn.config", \
     "--workers", "1", "--threads", "32", "--timeout", "0", "--graceful-timeout", "8", \
     "--forwarded-allow-ips", "*", "--no-control-socket"]
