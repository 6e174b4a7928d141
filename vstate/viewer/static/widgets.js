// Small parts that several modules draw.
import { shown } from "./api.js";
import { html, useEffect, useState } from "./preact.js";

export function Chip({ children, ...props }) {
  return html`<button type="button" class="chip" ...${props}>${children}</button>`;
}

export function Twist({ isOpen, label, onTurn }) {
  return html`<button type="button" class="twist" aria-expanded=${isOpen} aria-label=${`${isOpen ? "fold" : "unfold"} ${shown(label)}`} onClick=${() => onTurn(!isOpen)}>${isOpen ? "▾" : "▸"}</button>`;
}

/** A word about what loads, once it takes long. */
export function Waiting({ children }) {
  const isSlow = useSlow(true);
  return isSlow ? html`<p class="empty" role="status">${children} …</p>` : null;
}

/** Whether something has been loading for a while. */
export function useSlow(loading) {
  const [isSlow, setSlow] = useState(false);
  useEffect(() => {
    setSlow(false);
    const timer = loading && setTimeout(() => setSlow(true), 150);
    return () => clearTimeout(timer);
  }, [loading]);
  return isSlow;
}

/** The pages of an answer, the button for the next page with its error, the place of that page, and its load.
 * `label` tells what the button brings. */
export function usePages(answer, load, label, nextOf = (page) => page.next) {
  const [state, setState] = useState({});
  const { pages = [], error } = state.of === answer ? state : {};
  const next = answer ? nextOf(pages.at(-1) ?? answer) : null;
  const more = () => load(next).then(
    (page) => setState({ of: answer, pages: [...pages, page] }),
    (failed) => setState({ of: answer, pages, error: failed }),
  );
  const button = html`${next !== null && html`<${Chip} onClick=${more}>${label(next)}</${Chip}>`}<${Failure} error=${error} />`;
  return [answer ? [answer, ...pages] : [], button, next, more];
}

/** How many keys were added, modified and removed. */
export function Tally({ counts }) {
  return ["added", "modified", "removed"].map((kind) => html`<span class=${`is-${kind}`}>${counts[kind]} ${kind}</span>`);
}

export function Failure({ error }) {
  return error ? html`<p class="error" role="alert">${shown(error.message ?? error)}</p>` : null;
}
