"""Declared flows: a function of steps, by a name."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Concatenate, Generic, ParamSpec, cast, overload

from rollforward.flows import changes, reading
from rollforward.flows.reading import FlowState
from rollforward.flows.steps.delivery import deliver, give_up
from rollforward.flows.steps.policy import RetryPolicy
from rollforward.flows.steps.steps import Steps
from rollforward.flows.steps.waits import FlowBatch
from rollforward.flows.wakes import FlowArgs
from rollforward.lanes.declaration import LaneKey
from rollforward.runtime.clients import Clients
from rollforward.tasks.arguments import ArgumentsCodec
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import TooLargeError
from rollforward.tasks.parameters import Parameters, bound, form_of, with_clients
from rollforward.tasks.stored.names import MAX_BODY_BYTES

P = ParamSpec("P")

NAME = re.compile(r"[a-z][a-z0-9_-]{0,49}")
KEEP = datetime.timedelta(days=30)
MAX_KEEP = datetime.timedelta(days=365)
# Deliveries that may fail between steps, by a mistake of the code.
MAX_ATTEMPTS = 10

_FORM = """declare a flow in one of these forms, the second with a dataclass of its arguments:
    @flow("orders")
    def order(step: Steps, item: str, quantity: int = 1) -> None: ...
    @flow("orders")
    def order(step: Steps, args: OrderArgs) -> None: ..."""


class Flow(Generic[P]):
    """Flows of one kind: `@flow(name)` makes one of a function."""

    def __init__(
        self,
        name: str,
        function: Callable[Concatenate[Steps, P], object],
        *,
        queue: str,
        members: Sequence[Task[Any]] = (),
        retries: RetryPolicy | None = None,
        keep: datetime.timedelta = KEEP,
        lane: Callable[..., LaneKey | None] | None = None,
    ) -> None:
        """Declare flows; `flow` says what each argument is."""
        if not NAME.fullmatch(name):
            raise ValueError(f"name must match {NAME.pattern}, got {name!r}")
        if not datetime.timedelta(0) < keep <= MAX_KEEP:
            raise ValueError(f"keep must be positive and at most {MAX_KEEP.days} days, got {keep}")
        self.name = name
        self.function = function
        self.queue = queue
        self.retries = retries or RetryPolicy()
        self.keep = keep
        self.lane = lane
        self.args, work = form_of(function, Steps, _FORM)
        self.work: Callable[[Steps, Any], object] = cast(Any, work)
        self.batch = (
            FlowBatch(name, self.task, members, queue=queue, keep=keep) if members else None
        )

    def __repr__(self) -> str:
        return f"Flow({self.name!r})"

    @cached_property
    def task(self) -> Task[FlowArgs]:
        """The task that delivers these flows."""
        return Task(
            f"/tasks/flows/{self.name}",
            self.queue,
            FlowArgs,
            partial(deliver, self),
            MAX_ATTEMPTS,
            on_give_up=give_up,
        )

    @cached_property
    def _codec(self) -> ArgumentsCodec[Any]:
        return ArgumentsCodec(f"flow {self.name}", self.args)

    def read(self, args: str) -> Any:
        """Return the arguments in some JSON.

        Raises:
            BadArgumentsError: they are not of this flow's type.
        """
        return self._codec.read(args.encode())

    # Change

    @overload
    def start(
        self, clients: Clients, flow_id: str, /, *args: P.args, **options: P.kwargs
    ) -> bool: ...

    @overload
    def start(self, flow_id: str, /, *args: P.args, **options: P.kwargs) -> bool: ...

    def start(self, /, *args: Any, **options: Any) -> bool:
        """Start a flow under an id of its own; in a transaction, with it.

        Args:
            clients: Default the clients of the request or task that runs now.
            flow_id: Chosen so that the same intent has the same id, up to 100 bytes.

        Returns:
            True if this call started it, False if there is a flow of this id.

        Raises:
            BadFlowError, BadArgumentsError, TooLargeError, UnknownTaskError: nothing was started.
            BadLaneError: its deliveries cannot go through the lane that the declaration names.
        """
        clients, (flow_id, *flow_args) = with_clients(args)
        body = self._body(clients, flow_args, options)
        lane = self.lane(*flow_args, **options) if self.lane is not None else None
        return self._start(clients, flow_id, body, lane)

    @overload
    def start_in(
        self, clients: Clients, lane: LaneKey, flow_id: str, /, *args: P.args, **options: P.kwargs
    ) -> bool: ...

    @overload
    def start_in(
        self, lane: LaneKey, flow_id: str, /, *args: P.args, **options: P.kwargs
    ) -> bool: ...

    def start_in(self, /, *args: Any, **options: Any) -> bool:
        """Start a flow whose deliveries go through a lane: `order.start_in(BY_USER("ada"), "A1")`.

        Args:
            clients: As of `start`, like the others.
            lane: Key of a lane, in the place of the one that the declaration names.

        Returns, raises: as `start`.
        """
        clients, (lane, flow_id, *flow_args) = with_clients(args)
        return self._start(clients, flow_id, self._body(clients, flow_args, options), lane)

    def _start(self, clients: Clients, flow_id: str, body: str, lane: LaneKey | None) -> bool:
        if lane is not None and not isinstance(lane, LaneKey):
            raise TypeError(
                f'the lane of a flow {self.name} must be a key, as BY_USER("ada"), got {lane!r}'
            )
        return changes.start(clients, self, flow_id, body, lane)

    def _body(self, clients: Clients, flow_args: Sequence[Any], options: dict[str, Any]) -> str:
        """Return the arguments of a flow as JSON, checked."""
        self.task.check_registered(clients)
        body = self._codec.dump(self._bound(flow_args, options))
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError(
                f"arguments of a flow must have at most {MAX_BODY_BYTES:,} bytes, got {len(body):,}"
            )
        return body.decode()

    def signal(self, /, *args: Any, event_id: str = "") -> bool:
        """Send an event: `order.signal("A1", "courier", {"at": "the door"})`.

        It is kept until a step of the flow waits for it. In a transaction it is sent with it.

        Args:
            args: The clients, or not; the flow's id, the event's name, and its payload, any JSON.
            event_id: A second event of this id is not kept.

        Returns:
            True if this call sent it, False if an event of this id had come before.

        Raises:
            UnknownFlowError, FlowEndedError: no step would get it.
            BadFlowError, FlowRefusedError: nothing was sent; the text says why.
        """
        clients, (flow_id, event, *payload) = with_clients(args)
        if len(payload) > 1:
            raise TypeError("signal takes a flow's id, an event's name and one payload")
        return changes.signal(
            clients, self, flow_id, event, payload[0] if payload else None, event_id
        )

    def cancel(self, /, *args: Any, request_id: str = "") -> bool:
        """Undo a flow: `order.cancel("A1")`; return whether it ends, or has ended, as cancelled.

        A step at work ends first. Then the undos of the steps so far are called, the last one
        first. A flow that has succeeded, or is rejected already, is not cancelled. One whose undo
        has failed is cancelled once more to leave what cannot be undone.

        Args:
            request_id: A second call with this id, of the flow's last 20 requests, does nothing.

        Raises:
            UnknownFlowError: there is none.
        """
        clients, (flow_id,) = with_clients(args)
        return changes.cancel(clients, self, flow_id, request_id=request_id)

    def retry(
        self, /, *args: Any, from_step: str = "", request_id: str = "", new_calls: bool = False
    ) -> bool:
        """Run a flow again that has failed: `order.retry("A1")`.

        Args:
            from_step: Drop the outcomes of this step and all later ones, and run them again. Their
                effects stay.
            request_id: A second call with this id, of the flow's last 20 retries, does nothing.
            new_calls: Let a flow that is being undone make the commits and calls outside that it
                never began, until the code has come to all that it has to undo. They are undone,
                too. For code that has another order than the code that made the calls.

        Returns:
            True if this call retried it, False if one with this id had.

        Raises:
            UnknownFlowError: there is none.
            BadFlowError, FlowRefusedError: not by this id, or not as it is now.
        """
        clients, (flow_id,) = with_clients(args)
        return changes.retry(
            clients, self, flow_id, from_step, request_id=request_id, new_calls=new_calls
        )

    # Read

    def state(self, flow_id: str) -> FlowState:
        """Return the state of a flow, with its steps: one read.

        Raises:
            UnknownFlowError: there is none.
        """
        return reading.state(changes.run_id_of(self.name, flow_id))

    def _bound(self, args: Sequence[Any], options: dict[str, Any]) -> Any:
        if issubclass(self.args, Parameters):
            return bound(self.args, f"flow {self.name}", args, options)
        if len(args) != 1 or options:
            raise TypeError(f"flow {self.name} takes one {self.args.__name__}")
        return args[0]


def flow(
    name: str,
    *,
    queue: str = "default",
    members: Sequence[Task[Any]] = (),
    retries: RetryPolicy | None = None,
    keep: datetime.timedelta = KEEP,
    lane: Callable[..., LaneKey | None] | None = None,
) -> Callable[[Callable[Concatenate[Steps, P], object]], Flow[P]]:
    """Declare the function below as a flow: one thing, and many steps over time.

    Its first parameter gets the steps. The others are its arguments, as a task's.

    Args:
        name: Stands in keys and routes: never change it while flows run.
        queue: A queue of queue.yaml.
        members: Tasks that its batches may have as members.
        retries: Policy for its steps; None: ten attempts, over a quarter of an hour.
        keep: How long a flow can be read after its end. Then its id is free again.
        lane: Returns the key of the lane that a flow's deliveries go through, or None, given its
            arguments: `lane=lambda item, email: BY_USER(email)`.

    Raises:
        ValueError: the declaration is invalid.
        TypeError: by the decorator, when the function has another form than a flow's.
    """

    def declare(function: Callable[Concatenate[Steps, P], object]) -> Flow[P]:
        return Flow(
            *(name, function), queue=queue, members=members, retries=retries, keep=keep, lane=lane
        )

    return declare
