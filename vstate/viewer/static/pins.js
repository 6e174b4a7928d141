// Pinned keys, which stay in sight while one steps through the commits.
import { shown, useAnswer } from "./api.js";
import { Sign } from "./keys.js";
import { go, hrefOf } from "./place.js";
import { html } from "./preact.js";

const MOST = 8;

/** The pins of a place: texts of a key, or of a key and a path behind a line break. */
export function pinsOf(place) {
  return (place.pins ?? "").split("\u001f").filter(Boolean);
}

/** Pin a key, or a part of its value, or take the pin away. */
export function togglePin(place, key, path) {
  const name = path ? `${key}\n${path}` : key;
  const pins = pinsOf(place);
  const next = pins.includes(name) ? pins.filter((pin) => pin !== name) : [...pins, name].slice(-MOST);
  go({ pins: next.join("\u001f") }, { replace: true });
}

function Pin({ rev, pin, place }) {
  const [key, path = ""] = pin.split("\n");
  const { data, error } = useAnswer("/value", { rev, key, path, limit: 1 });
  const text = error ? "absent" : data?.key === key ? data.text ?? "" : "";
  return html`<li class="pin">
    <${Sign} change=${error ? null : data?.change} />
    <a href=${hrefOf({ key, path, page: "", tab: "" })}>${shown(path ? `${key} › ${path}` : key)}</a>
    <span class=${`pin-text ${error ? "is-dim" : ""}`} aria-live="polite">${shown(text)}</span>
    <button type="button" class="close" aria-label=${`take the pin of ${shown(key)} away`} onClick=${() => togglePin(place, key, path)}>×</button>
  </li>`;
}

/** The pinned keys at a commit. */
export function Pins({ rev, place }) {
  const pins = pinsOf(place);
  if (!pins.length || !rev) return null;
  return html`<ul class="pins" aria-label="Pinned keys">${pins.map((pin) => html`<${Pin} key=${pin} rev=${rev} pin=${pin} place=${place} />`)}</ul>`;
}
