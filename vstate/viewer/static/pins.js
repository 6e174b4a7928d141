// Pinned keys, which stay in sight while one steps through the commits.
import { named, parsed, shown, useAnswer } from "./api.js";
import { Sign } from "./keys.js";
import { go, hrefOf } from "./place.js";
import { html } from "./preact.js";

const MOST = 8;

function pinsOf(place) {
  const pins = parsed(place.pins, []); // of an address that somebody may have changed
  return (Array.isArray(pins) ? pins : []).filter((pin) => Array.isArray(pin) && pin.length === 2 && pin.every((each) => typeof each === "string")).slice(0, MOST);
}

const isSame = (key, path) => (pin) => pin[0] === key && pin[1] === (path ?? "");

export function isPinned(place, key, path) {
  return pinsOf(place).some(isSame(key, path));
}

/** Pin a key, or a part of its value, or take the pin away. */
export function togglePin(place, key, path) {
  const pins = pinsOf(place);
  const others = pins.filter((pin) => !isSame(key, path)(pin));
  const next = others.length < pins.length ? others : [...pins, [key, path ?? ""]].slice(-MOST);
  go({ pins: next.length ? JSON.stringify(next) : "" }, { replace: true });
}

function Pin({ rev, pin, place }) {
  const [key, path] = pin;
  const { data, error } = useAnswer("/value", { rev, key, path, limit: 1 });
  const text = error ? "absent" : data?.key === key ? data.text ?? "" : "";
  return html`<li class="pin">
    <${Sign} change=${error ? null : data?.change} />
    <a href=${hrefOf({ key, path, page: "", tab: "" })}>${named(key)}${path ? ` › ${shown(path)}` : ""}</a>
    <span class=${`pin-text ${error ? "is-dim" : ""}`} aria-live="polite">${shown(text)}</span>
    <button type="button" class="close" aria-label=${`take the pin of ${named(key)} away`} onClick=${() => togglePin(place, key, path)}>×</button>
  </li>`;
}

export function Pins({ rev, place }) {
  const pins = pinsOf(place);
  if (!pins.length || !rev) return null;
  return html`<ul class="pins" aria-label="Pinned keys">${pins.map((pin) => html`<${Pin} key=${pin.join("\n")} rev=${rev} pin=${pin} place=${place} />`)}</ul>`;
}
