// The names of Preact and htm, which the vendored script defines.
export const { html, render, useState, useEffect, useLayoutEffect, useMemo, useRef } = globalThis.htmPreact;
