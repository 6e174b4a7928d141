// New commits appear as they are made.
import { useEffect, useState } from "./preact.js";

/** A text that changes when a ref of the store moves; null until it is known. `false` instead, if the server is gone. */
export function useRefs() {
  const [state, setState] = useState(null);
  useEffect(() => {
    if (globalThis.vstateAnswers) {
      setState("file");
      return undefined;
    }
    const source = new EventSource("api/v1/events");
    source.addEventListener("refs", (event) => setState(JSON.parse(event.data).state));
    source.onerror = () => { if (source.readyState === EventSource.CLOSED) setState(false); };
    return () => source.close();
  }, []);
  return state;
}
