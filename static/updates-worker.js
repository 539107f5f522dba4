// The one stream of live updates of a browser: all its pages that are in view share it, because a
// browser opens six connections to a host, and one stream a page would take them all (updates.js).
//
// A page sends { watch, seen }: the address of its topics, and the id of the change that it heard
// of last. It hears { id } of each later one, and { refused } if the server has no room. It sends
// { leave } when it is hidden or closed. One that ends without a word is found out by { ping },
// sent with each new stream, which it answers by watching again.
"use strict";
const MAX_WATCHED = 12; // Of the server, as the length of an address is.
const MAX_CHARS = 3500;
const GATHER_MS = 30; // Pages that open at the same moment cause one new stream.
const PING_EVERY_MS = 30000;
// The server notices a closed stream at its next heartbeat; until then it may have no room.
const RETRY_MS = 6000;

const pages = new Map(); // By port: what it watches, and whether it has answered.
const latest = new Map(); // The id of the last change, by address.
let source = null;
let streamed = []; // The addresses of the stream, in its order.
let timer = 0;
let isRetry = false; // The last stream was refused.
let pinged = performance.now();
const name = `updates ${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
// Held as long as this script lives: a page that waits for it learns of its death.
navigator.locks?.request(name, () => new Promise(() => {}));

const tokenOf = (address) => address.slice(address.lastIndexOf("/") + 1);

const refuse = (address) => {
  for (const [port, page] of pages) {
    if (page.address !== address) continue;
    pages.delete(port);
    port.postMessage({ refused: true });
  }
};

const hear = (address, id) => {
  if (id === "gone") return refuse(address);
  latest.set(address, id);
  for (const [port, page] of pages) {
    if (page.address !== address || page.seen === id) continue;
    page.seen = id;
    port.postMessage({ id });
  }
};

const ping = () => {
  if (performance.now() - pinged < PING_EVERY_MS) return;
  pinged = performance.now();
  for (const [port, page] of pages) {
    if (!page.answers) pages.delete(port);
    page.answers = false;
    port.postMessage({ ping: true });
  }
  gather();
};

// The newest pages first: those that do not fit ask by themselves.
const wanted = () => {
  const fitting = [];
  let chars = 0;
  for (const { address } of [...pages.values()].reverse()) {
    if (fitting.includes(address)) continue;
    chars += tokenOf(address).length + 20;
    if (fitting.length === MAX_WATCHED || chars > MAX_CHARS) refuse(address);
    else fitting.push(address);
  }
  return fitting.sort();
};

const connect = () => {
  timer = 0;
  const addresses = wanted();
  // A page that has left costs less in the stream than another stream does.
  if (source && addresses.length && addresses.every((address) => streamed.includes(address))) return;
  source?.close();
  source = null;
  streamed = addresses;
  for (const address of latest.keys()) if (!addresses.includes(address)) latest.delete(address);
  if (!addresses.length) return;
  const base = addresses[0].slice(0, addresses[0].lastIndexOf("/") + 1);
  const after = addresses.map((address) => latest.get(address) || "").join();
  const stream = new EventSource(
    `${base}${addresses.map(tokenOf).join()}/events?after=${encodeURIComponent(after)}`,
  );
  source = stream;
  stream.addEventListener("open", () => {
    isRetry = false;
    ping();
  });
  stream.addEventListener("changed", (event) => {
    event.lastEventId.split(",").forEach((id, i) => hear(addresses[i], id));
  });
  stream.addEventListener("error", () => {
    if (stream.readyState !== EventSource.CLOSED || source !== stream) return;
    source = null;
    if (isRetry) addresses.forEach(refuse);
    else setTimeout(gather, RETRY_MS);
    isRetry = !isRetry;
  });
};

const gather = () => { timer ||= setTimeout(connect, GATHER_MS); };

const take = (port, { watch, seen, leave }) => {
  if (leave) pages.delete(port);
  if (watch) {
    pages.delete(port); // It is the newest again.
    pages.set(port, { address: watch, seen, answers: true });
    port.postMessage({ name });
    if (latest.has(watch)) hear(watch, latest.get(watch));
  }
  gather();
};

addEventListener("connect", ({ ports: [port] }) => {
  port.addEventListener("message", ({ data }) => take(port, data));
  port.start();
});
