// New commits appear as they are made.
import { seen } from "./api.js";
import { useEffect, useState } from "./preact.js";

const GONE = 800; // milliseconds without an answer
const ENDED = "The viewer has ended. Start vstate view again for new commits.";

/** `[state, trouble]`: a text that changes when a ref moves, and why no such change can be seen, null if one can.
 * The first text came with the page, before any answer: an older answer is asked for anew. */
export function useRefs() {
  const [state, setState] = useState(() => document.querySelector("meta[name=vstate-refs]")?.content ?? "");
  const [trouble, setTrouble] = useState(null);
  useEffect(() => {
    if (globalThis.vstateAnswers) return undefined;
    let source = null;
    let timer = null; // a browser asks again and again for a server that is gone
    const open = () => {
      source = new EventSource("api/v1/events");
      source.addEventListener("lost", (event) => setTrouble(JSON.parse(event.data).error));
      source.addEventListener("refs", (event) => {
        setTrouble(null);
        setState(JSON.parse(event.data).state);
      });
      source.onerror = () => { timer ??= setTimeout(() => setTrouble(ENDED), GONE); };
      source.onopen = () => {
        clearTimeout(timer);
        timer = null;
        setTrouble(null);
      };
    };
    // A browser has six connections to a server, for all tabs: one that nobody sees needs none.
    const follow = () => {
      source?.close();
      source = null;
      if (!document.hidden) open();
    };
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      source?.close();
    };
  }, []);
  seen.refs = state;
  return [state, trouble];
}
