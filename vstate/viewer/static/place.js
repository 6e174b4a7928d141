// The place: what the page shows, as the part of the address behind #, so that a link leads to it.
import { useEffect, useState } from "./preact.js";

// The frame of a notebook has no address of its own, and a link would lead it away.
const isFrame = location.protocol === "about:";
let held = "";
if (isFrame) addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link) return;
  event.preventDefault();
  held = link.getAttribute("href");
  dispatchEvent(new Event("vstate-place"));
});

const address = () => (isFrame ? held : location.hash);

/** The place as an object of texts. `key` is undefined where no key is chosen: "" is a key. */
export function readPlace() {
  return Object.fromEntries(new URLSearchParams(address().replace(/^#\/?\??/, "")));
}

/** Whether a parameter has a value. A key may be "". */
export function isGiven(name, value) {
  return value !== undefined && value !== null && value !== false && (value !== "" || name === "key");
}

function textOf(place) {
  const given = Object.entries(place).filter(([name, value]) => isGiven(name, value));
  return `#/?${new URLSearchParams(given)}`;
}

export function hrefOf(changes, from = readPlace()) {
  return textOf({ ...from, ...changes });
}

/** Go to the place with these changes. With `replace`, the back button leads past the place before. */
export function go(changes, { replace = false } = {}) {
  const href = hrefOf(changes);
  if (href === (address() || "#/?")) return;
  if (isFrame) held = href;
  else history[replace ? "replaceState" : "pushState"](null, "", href);
  dispatchEvent(new Event("vstate-place"));
}

export function usePlace() {
  const [place, setPlace] = useState(readPlace);
  useEffect(() => {
    const update = () => setPlace(readPlace());
    addEventListener("vstate-place", update);
    addEventListener("popstate", update);
    addEventListener("hashchange", update);
    update(); // of a change since the first draw
    return () => {
      removeEventListener("vstate-place", update);
      removeEventListener("popstate", update);
      removeEventListener("hashchange", update);
    };
  }, []);
  return place;
}
