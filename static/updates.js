// Learns that what a page shows has changed: by a stream of server-sent events or, where the
// server has no room for one more stream, by a question that costs next to nothing. What has
// changed is not said: whoever is told looks.
//
// All pages of a browser share one stream (updates-worker.js). Where there are no shared workers,
// as on some phones, or where that one does not answer, one page in view has a stream of its own,
// and the others ask until it is hidden or closed: a browser opens six connections to a host.
//
// The element says where (`data-updates`), and whether the server streams (`data-streams`). It is
// told by which kind of stream it listens (`data-listens`).
"use strict";
(() => {
  const ANSWERS_WITHIN_MS = 30000;
  const MAX_DEATHS = 3; // After these, and after one silence, a page has its own stream.
  const script = new URL("updates-worker.js", document.currentScript.src);
  let deaths = typeof SharedWorker === "undefined" ? MAX_DEATHS : 0;

  // Both kinds of stream call `onOpen`, `onId` with the id of a change, and `onRefused` when there
  // is no room; a shared one calls `onDeath` when its worker is gone.
  const ownStream = (address, seen, { onOpen, onId, onRefused }) => {
    const ends = new AbortController();
    let source = null;
    const stream = () => new Promise((release) => {
      ends.signal.addEventListener("abort", release);
      source = new EventSource(`${address}/events?after=${encodeURIComponent(seen())}`);
      source.addEventListener("open", () => onOpen("own"));
      source.addEventListener("changed", (event) => onId(event.lastEventId));
      source.addEventListener("error", () => {
        if (source.readyState === EventSource.CLOSED) onRefused();
      });
    });
    const refuse = () => { if (!ends.signal.aborted) onRefused(); };
    // Without locks, pages cannot agree on one of them: each asks.
    const lock = navigator.locks?.request("updates stream", { signal: ends.signal }, stream);
    (lock || Promise.reject(new Error("no locks"))).catch(refuse);
    return {
      isOpen: () => source !== null,
      close: () => {
        ends.abort();
        source?.close();
      },
    };
  };

  const sharedStream = (address, seen, { onOpen, onId, onRefused, onDeath }) => {
    const worker = new SharedWorker(script, { name: "updates 1" });
    const ends = new AbortController();
    let last = seen();
    let isKnown = false;
    const watch = () => worker.port.postMessage({ watch: address, seen: last });
    const die = () => {
      if (ends.signal.aborted) return;
      deaths = isKnown ? deaths + 1 : MAX_DEATHS;
      close();
      onDeath();
    };
    const silence = setTimeout(die, ANSWERS_WITHIN_MS);
    const close = () => {
      clearTimeout(silence);
      ends.abort();
      worker.port.postMessage({ leave: true });
      worker.port.close();
    };
    worker.addEventListener("error", die);
    worker.port.addEventListener("message", ({ data }) => {
      if (ends.signal.aborted) return;
      if (data.name && !isKnown) {
        isKnown = true;
        clearTimeout(silence);
        onOpen("shared");
        // Granted when the worker has died.
        navigator.locks?.request(data.name, { signal: ends.signal }, die).catch(() => {});
      }
      if (data.ping) watch();
      if (data.refused) onRefused();
      if (data.id === undefined) return;
      last = data.id;
      onId(data.id);
    });
    worker.port.start();
    watch();
    return { isOpen: () => true, close };
  };

  // The browser may forbid shared workers of this origin.
  const openStream = (...how) => {
    try {
      if (deaths < MAX_DEATHS) return sharedStream(...how);
    } catch {
      deaths = MAX_DEATHS;
    }
    return ownStream(...how);
  };

  const open = (element, onChange) => {
    const { streams } = element.dataset;
    let address = element.dataset.updates;
    let stream = null;
    let hasRoom = false; // The server takes streams.
    let seen = ""; // The id of the last change that was heard of.

    const told = {
      isThere: Boolean(address),
      // Something has changed since the page was asked for: whoever asks for it sets it back.
      isChanged: false,

      isListening: () => stream !== null && stream.isOpen(),

      // The page is looked at again: perhaps there is room now.
      tryAgain: () => { hasRoom = streams === "yes"; },

      listen: () => {
        if (stream || !address || !hasRoom) return;
        stream = openStream(address, () => seen, {
          onOpen: (kind) => { element.dataset.listens = kind; },
          onId: (id) => {
            seen = id;
            told.isChanged = true;
            onChange();
          },
          onRefused: () => {
            hasRoom = false;
            told.hush();
            onChange();
          },
          onDeath: () => {
            stream = null;
            told.listen();
          },
        });
      },

      hush: () => {
        stream?.close();
        stream = null;
        delete element.dataset.listens;
      },

      // What the page shows is of other topics now.
      follow: (newer) => {
        if (!newer || newer === address) return;
        const hadStream = stream !== null;
        told.hush();
        [address, seen] = [newer, ""];
        if (hadStream) told.listen();
      },

      // Asks; returns how soon the server wants to be asked again. An answer that is none counts
      // as a change: what it is shows when the page is asked for.
      ask: async () => {
        const response = await fetch(address, { cache: "no-store" }).catch(() => null);
        if (!response?.ok) {
          told.isChanged = true;
          return 0;
        }
        const latest = await response.json();
        if (latest.id !== seen) told.isChanged = true;
        seen = latest.id;
        return latest.again_ms;
      },
    };
    told.tryAgain();
    // A page that is left leaves the stream, and comes back to it if the browser has kept it.
    addEventListener("pagehide", told.hush);
    addEventListener("pageshow", (event) => { if (event.persisted) onChange(); });
    return told;
  };

  window.updates = { open };
})();
