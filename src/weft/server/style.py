"""How pages look: one stylesheet, light and dark, for desks and phones. Its hash is what the pages allow."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root{color-scheme:light dark;--page:#f4f5f7;--card:#fff;--ink:#16181d;--soft:#565d6b;--line:#dfe2e8;--code:#f6f7f9;
--yes:#0f7a4c;--yes-ink:#fff;--no:#b3261e;--no-ink:#fff;--note:#eef3ff;--note-ink:#20439b;--good:#e5f5ec;--good-ink:#0b5a38;
--bad:#fdecea;--bad-ink:#8c1d18;--focus:#2f6bff}
@media (prefers-color-scheme:dark){:root{--page:#0f1115;--card:#181b21;--ink:#e9ebf0;--soft:#a2a9b8;--line:#2c313b;
--code:#11141a;--yes:#34c583;--yes-ink:#04150c;--no:#ff8a80;--no-ink:#2b0603;--note:#16233f;--note-ink:#a9c4ff;--good:#10291d;
--good-ink:#86e0b3;--bad:#35160f;--bad-ink:#ffb4a9;--focus:#7ea6ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:46rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
.brand{display:flex;gap:.5rem;align-items:baseline;margin:0 0 .9rem;color:var(--soft);font-size:.9rem}
.brand b{color:var(--ink);letter-spacing:.02em}
.card{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:1.75rem;margin:0 0 1rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .5rem;overflow-wrap:anywhere;text-wrap:balance}
h2{font-size:.8rem;font-weight:600;color:var(--soft);text-transform:uppercase;letter-spacing:.06em;margin:1.75rem 0 .6rem}
p{margin:0 0 .75rem;overflow-wrap:anywhere}
.lead{color:var(--soft);margin-bottom:0}.lead b{color:var(--ink)}
.banner{border-radius:10px;padding:.8rem 1rem;margin:1.25rem 0 0;background:var(--note);color:var(--note-ink);
overflow-wrap:anywhere}
.banner.good{background:var(--good);color:var(--good-ink)}.banner.bad{background:var(--bad);color:var(--bad-ink)}
.banner p:last-child{margin:0}
dl{display:grid;grid-template-columns:minmax(7rem,max-content) minmax(0,1fr);gap:.45rem 1.25rem;margin:0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere;white-space:pre-wrap}
.shown{background:var(--code);border:1px solid var(--line);border-radius:10px;padding:1rem 1.1rem}
pre{margin:0;max-height:26rem;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere;
font:13.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.text{white-space:pre-wrap;margin:0}
code{font:.9em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
ul{margin:0;padding:0;list-style:none}li{padding:.5rem 0;border-top:1px solid var(--line);overflow-wrap:anywhere}
li:first-child{border-top:0;padding-top:0}li:last-child{padding-bottom:0}
.quiet{color:var(--soft);font-size:.9rem}
.field{margin:0 0 1.1rem}
label{display:block;font-weight:600;margin:0 0 .3rem;overflow-wrap:anywhere}
.optional{font-weight:400;color:var(--soft)}
input,textarea,select{width:100%;font:inherit;color:var(--ink);background:var(--card);border:1px solid var(--soft);
border-radius:9px;padding:.6rem .7rem}
textarea{min-height:5.5rem;resize:vertical}
textarea.json{min-height:10rem;font:13.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
input[type=checkbox]{width:1.15rem;height:1.15rem;margin:0 .6rem 0 0;flex:none;accent-color:var(--focus)}
.check{display:flex;align-items:center}.check label{margin:0}
.hint{color:var(--soft);font-size:.9rem;margin:.3rem 0 0}
.wrong{color:var(--bad-ink);font-weight:600;font-size:.9rem;margin:.3rem 0 0}
.field.bad input,.field.bad textarea,.field.bad select{border-color:var(--no);border-width:2px}
:focus-visible{outline:3px solid var(--focus);outline-offset:2px}
button{font:inherit;font-weight:600;padding:.75rem 1.75rem;border:0;border-radius:10px;cursor:pointer;background:var(--yes);
color:var(--yes-ink)}
button.no{background:var(--no);color:var(--no-ink)}
.act{display:flex;align-items:center;gap:1.1rem;margin-top:1.5rem}
.act .quiet{margin:0}
@media (max-width:36rem){main{padding:1.25rem .9rem 2.5rem}.card{padding:1.2rem 1.1rem;border-radius:12px}h1{font-size:1.3rem}
.shown dl{grid-template-columns:minmax(0,1fr);gap:0}.shown dd{margin:0 0 .7rem}.shown dd:last-child{margin:0}
dl{grid-template-columns:6.5rem minmax(0,1fr);gap:.4rem .75rem}
.act{flex-direction:column;align-items:stretch}button{padding:.9rem}}
"""

_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
#: What a page may do: be styled by that sheet, and send its form home. Nothing is loaded, run or framed.
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
