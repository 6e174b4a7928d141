// New commits appear as they are made.
import { seen } from "./api.js";
import { useEffect, useRef, useState } from "./preact.js";

const GONE = 800; // milliseconds without an answer
const ENDED = "The viewer has ended. Start vstate view again for new commits.";

/** `[state, trouble]`: a text that changes when a ref moves after the page was loaded, when the refs were in the
 * state `known`, null before; and why no change can be seen, null if one can. */
export function useRefs(known) {
  const [state, setState] = useState(null);
  const [trouble, setTrouble] = useState(null);
  const first = useRef(null);
  useEffect(() => {
    if (known && first.current && state === null && known !== first.current) setState(first.current);
  }, [known]);
  useEffect(() => {
    if (globalThis.vstateAnswers) {
      setState("file");
      return undefined;
    }
    let source = null;
    let timer = null; // a browser asks again and again for a server that is gone
    const open = () => {
      source = new EventSource("api/v1/events");
      source.addEventListener("lost", (event) => setTrouble(JSON.parse(event.data).error));
      source.addEventListener("refs", (event) => {
        setTrouble(null);
        const next = JSON.parse(event.data).state;
        if (first.current !== null && next !== first.current) setState(next);
        first.current = next;
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
