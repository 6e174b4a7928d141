// The answers of a page that was opened from a file: all of them are in the page.
const PLACED = 200; // rows of a page
const AROUND = 60; // characters around what was sought

const REFUSED = ["info", "since", "until", "author"]; // conditions that the server reads

function shownRow(row, query) {
  const wanted = (query.get("grep") ?? "").toLowerCase();
  const key = query.get("key");
  const texts = [row.message, ...Object.entries(row.info).map(([name, value]) => `${name}=${value}`)].map((text) => text.toLowerCase());
  return texts.some((text) => text.includes(wanted)) && (!key || key in row.keys);
}

/** An object whose names are all from the store: none, such as "constructor", is inherited. */
const plain = (found) => found && Object.assign(Object.create(null), found);

/** The answer without its marks, which are those of another commit. */
function unmarked(answer) {
  const { view } = answer;
  const bare = (message) => ({ ...message, new: false, calls: message.calls.map((call) => ({ ...call, new: false })) });
  const others = { messages: view?.messages?.map(bare), changed: [], changed_columns: [], changes: [] };
  return { ...answer, parts: answer.parts.map((part) => ({ ...part, change: null })), view: view && { ...view, ...others } };
}

/** The function that answers requests from the data of the file. */
export function answersOf(data) {
  for (const row of data.rows) Object.assign(row, { keys: plain(row.keys), state: plain(row.state) });
  for (const value of data.values) value.parts = plain(value.parts);
  const rows = new Map(data.rows.map((row) => [row.id, row]));
  const states = new Map();

  function stateOf(id) {
    const chain = [];
    let at = id;
    while (at && rows.has(at) && !states.has(at)) {
      chain.push(at);
      if (rows.get(at).state) break;
      at = rows.get(at).parents[0];
    }
    for (const each of chain.reverse()) {
      const row = rows.get(each);
      const state = new Map(row.state ? Object.entries(row.state) : states.get(row.parents[0]) ?? []);
      if (!row.state) for (const [key, change] of Object.entries(row.keys)) {
        if (change.value === null) state.delete(key);
        else state.set(key, change.value);
      }
      states.set(each, state);
    }
    return states.get(id) ?? new Map();
  }

  function idOf(rev) {
    if (rows.has(rev) || !rev) return rev || data.rows[0]?.id;
    for (const kind of ["heads", "tags", "remotes"]) {
      const found = data.refs[{ heads: "branches" }[kind] ?? kind].find(({ name }) => name === rev || `${kind}/${name}` === rev);
      if (found) return found.commit;
    }
    return undefined;
  }

  function historyOf(name) {
    const found = new Set();
    const waiting = [idOf(name)];
    while (waiting.length) {
      const id = waiting.pop();
      if (!rows.has(id) || found.has(id)) continue;
      found.add(id);
      waiting.push(...rows.get(id).parents);
    }
    return found;
  }

  function commits(query) {
    if (REFUSED.some((name) => query.get(name))) throw new Error("The commits of a file are chosen by key: and by text only.");
    const known = query.get("rev") ? historyOf(query.get("rev")) : rows;
    const found = data.rows.filter((row) => known.has(row.id) && shownRow(row, query));
    const isWhole = found.length === data.rows.length;
    const first = Number(query.get("first") ?? 0);
    const page = found.slice(first, first + PLACED).map((row) => (isWhole ? row : { ...row, edges: [], lane: 0, lanes: 1 }));
    const sought = query.get("find");
    const at = sought ? found.findIndex((row) => row.id === sought) : -1;
    return { view: "file", rows: page, first, known: found.length, commits: found.length, complete: true, sought, found: at < 0 ? null : at };
  }

  function keys(query) {
    const id = idOf(query.get("rev"));
    const changes = rows.get(id)?.keys ?? {};
    const state = stateOf(id);
    const prefix = query.get("prefix") ?? "";
    const gone = Object.keys(changes).filter((key) => changes[key].kind === "removed");
    const all = [...state.keys(), ...gone].filter((key) => key.startsWith(prefix) && (!query.get("changed") || key in changes)).sort();
    const items = new Map();
    for (const key of all) {
      const [step, ...rest] = key.slice(prefix.length).split("/");
      const change = changes[key]?.kind ?? null;
      if (!rest.length) {
        const value = data.values[state.get(key)] ?? {};
        const { type = changes[key]?.old?.type ?? "", size = changes[key]?.old?.size ?? 0 } = value;
        items.set(key, { name: step, key, folder: null, type, size, change });
      } else {
        const folder = `${prefix}${step}/`;
        const item = items.get(folder) ?? { name: step, key: null, folder, keys: 0, changed: 0, change: null };
        item.keys += 1;
        item.changed += change ? 1 : 0;
        item.change = item.changed ? "modified" : null;
        items.set(folder, item);
      }
    }
    return { rev: id, prefix, items: [...items.values()], next: null, keys: state.size };
  }

  function value(query) {
    const id = idOf(query.get("rev"));
    const number = stateOf(id).get(query.get("key"));
    if (number === undefined) return null;
    const found = data.values[number];
    const place = query.get("path") ?? "";
    const first = query.get("first") ?? "0";
    const answer = found?.parts[first === "0" ? place : `${place}\n${first}`];
    if (!answer) return null;
    const change = rows.get(id)?.keys[query.get("key")]?.kind ?? null;
    return { ...(found.marks === id ? answer : unmarked(answer)), rev: id, key: query.get("key"), path: place, size: found.size, change: answer.path ? answer.change : change };
  }

  function diff(query) {
    const id = idOf(query.get("new"));
    const changes = rows.get(id)?.keys ?? {};
    const old = rows.get(id)?.parents[0] ?? null;
    if (query.get("old") && query.get("old") !== old) return null;
    const key = query.get("key");
    if (key !== null) return changes[key] ? { old, new: id, base: null, key, ...changes[key].diff } : { old, new: id, key, kind: null, details: [], more: false };
    const listed = Object.entries(changes).map(([name, change]) => ({ key: name, kind: change.kind, old: change.old, new: change.new }));
    const count = (kind) => listed.filter((change) => change.kind === kind).length;
    return { old, new: id, base: null, changes: listed, first: 0, next: null, counts: { added: count("added"), modified: count("modified"), removed: count("removed") } };
  }

  function history(query) {
    const key = query.get("key");
    if (query.get("path")) return null;
    const found = data.rows.filter((row) => key in row.keys).map((row) => {
      const answer = data.values[row.keys[key].value]?.parts[""];
      const number = answer?.kind === "number" ? Number(answer.text) : NaN;
      const { id, short, time, message } = row;
      return { id, short, time, message, kind: row.keys[key].kind, type: null, size: null, ...row.keys[key].new, text: answer?.text ?? null, number: Number.isFinite(number) ? number : null };
    });
    return { commits: found, looked: found.length, unread: 0, next: null };
  }

  /** The texts and numbers of an answer about a value, with their paths. */
  function textsOf(answer) {
    const inParts = answer.parts.flatMap((part) => [[part.path, part.label], ...(["text", "number"].includes(part.kind) ? [[part.path, part.text]] : [])]);
    const cells = (answer.view?.cells ?? []).flatMap((row) => row.map((cell) => [answer.path, String(cell)]));
    const messages = (answer.view?.messages ?? []).flatMap((message) => [message, ...message.calls.map((call) => ({ place: message.place, text: `${call.name}(${call.arguments}) ${call.result ?? ""}` }))]);
    return [
      [answer.path, answer.view?.text ?? (["text", "number"].includes(answer.kind) ? answer.text : "")],
      ...inParts,
      ...cells,
      ...messages.map((message) => [`${answer.path}[${message.place}]`, message.text]),
    ];
  }

  function search(query) {
    const sought = query.get("text").toLowerCase();
    const id = idOf(query.get("rev"));
    const state = stateOf(id);
    const places = [];
    for (const [key, number] of state) {
      const found = new Map();
      if (key.toLowerCase().includes(sought)) found.set(null, key);
      for (const answer of Object.values(data.values[number]?.parts ?? {})) {
        for (const [path, text] of textsOf(answer)) if (text.toLowerCase().includes(sought)) found.set(path, text);
      }
      for (const [path, text] of found) {
        const begin = Math.max(text.toLowerCase().indexOf(sought) - AROUND, 0);
        places.push({ key, path, excerpt: text.slice(begin, begin + 2 * AROUND + sought.length) });
      }
    }
    const named = rows.get(idOf(query.get("text"))) ?? data.rows.find((row) => sought.length > 5 && row.id.startsWith(sought));
    return { places, keys: state.size, unread: 0, complete: true, branch: data.refs.branches.find(({ name }) => name === query.get("text"))?.name ?? null, commit: named ? { id: named.id, short: named.short, message: named.message } : null };
  }

  return (request) => {
    const [path, text] = request.split("?");
    const query = new URLSearchParams(text ?? "");
    if (path.startsWith("/commits/")) return data.commits[idOf(decodeURIComponent(path.slice(9)))] ?? null;
    const known = { "/commits": commits, "/keys": keys, "/value": value, "/diff": diff, "/history": history, "/search": search };
    if (known[path]) return known[path](query);
    if (path === "/bytes") return data.pictures[`${stateOf(idOf(query.get("rev"))).get(query.get("key"))} ${query.get("path") ?? ""}`] ?? null;
    return { "/store": data.store, "/refs": data.refs, "/branches": data.branches }[path] ?? null;
  };
}

const inPage = document.getElementById("vstate-data");
if (inPage) globalThis.vstateAnswers = answersOf(JSON.parse(inPage.textContent));
