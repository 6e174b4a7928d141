// New commits appear as they are made.
import { useEffect, useRef, useState } from "./preact.js";

/** A text that changes when a ref moves after the page was loaded, when the refs were in the state `known`; null
 * before. False if the server is gone. */
export function useRefs(known) {
  const [state, setState] = useState(null);
  const first = useRef(null);
  useEffect(() => {
    if (known && first.current && state === null && known !== first.current) setState(first.current);
  }, [known]);
  useEffect(() => {
    if (globalThis.vstateAnswers) {
      setState("file");
      return undefined;
    }
    const source = new EventSource("api/v1/events");
    source.addEventListener("refs", (event) => {
      const next = JSON.parse(event.data).state;
      if (first.current !== null) setState(next);
      first.current = next;
    });
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) setState(false); };
    return () => source.close();
  }, []);
  return state;
}
