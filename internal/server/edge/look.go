package edge

// Look is the beginning of the body of a page that loads nothing from elsewhere, such as the sign-in page and errors:
// its style, and the icon. It has the colours of the page in package web.
const Look = `<style>
:root{color-scheme:light dark;--bg:#fff;--text:#1b1f1c;--soft:#5b635d;--accent:#0f7a4d;--on:#fff}
@media (prefers-color-scheme:dark){:root{--bg:#151816;--text:#e4e8e4;--soft:#a0a9a2;--accent:#4cc38a;--on:#06281a}}
body{background:var(--bg);color:var(--text);font:15px/1.55 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;
 max-width:34rem;margin:12vh auto 0;padding:1rem}
h1{font-size:1.4rem;line-height:1.3;margin:.6rem 0 1rem;overflow-wrap:anywhere}
small,.soft{color:var(--soft)}a{color:var(--accent)}
button{font:inherit;font-weight:600;min-height:3rem;padding:.3rem 1.6rem;border:0;border-radius:8px;cursor:pointer;
 background:var(--accent);color:var(--on)}
button:focus-visible,a:focus-visible{outline:2px solid var(--accent);outline-offset:3px}
</style></head><body><svg width="48" height="48" viewBox="0 0 32 32" aria-hidden="true">
<rect width="32" height="32" rx="8" fill="#0f7a4d"/>
<path d="M10 7v18M22 7v18M10 16h12" stroke="#fff" stroke-width="3.4" stroke-linecap="round"/></svg>
`
