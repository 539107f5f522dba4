// Learns that what a page shows has changed: by a stream of server-sent events or, where the
// server has no room for one more stream, by a question that costs next to nothing. What has
// changed is not said: whoever is told looks.
//
// The element says where (`data-updates`), and whether the server streams (`data-streams`).
"use strict";
(() => {
  const open = (element, onChange) => {
    const { updates: address, streams } = element.dataset;
    let source = null; // The stream of events, if there is one. A browser connects again by itself.
    let hasRoom = false; // The server takes streams.
    let seen = ""; // The id of the last change that was heard of.

    const told = {
      isThere: Boolean(address),
      // Something has changed since the page was asked for: whoever asks for it sets it back.
      isChanged: false,

      isListening: () => source !== null,

      // The page is looked at again: perhaps there is room now.
      tryAgain: () => { hasRoom = streams === "yes"; },

      listen: () => {
        if (source || !address || !hasRoom) return;
        source = new EventSource(`${address}/events?after=${encodeURIComponent(seen)}`);
        source.addEventListener("changed", (event) => {
          seen = event.lastEventId;
          told.isChanged = true;
          onChange();
        });
        source.addEventListener("error", () => {
          if (source?.readyState !== EventSource.CLOSED) return;
          hasRoom = false;
          told.hush();
          onChange();
        });
      },

      hush: () => {
        source?.close();
        source = null;
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
    return told;
  };

  window.updates = { open };
})();
