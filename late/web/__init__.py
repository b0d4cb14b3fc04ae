"""The page for operators: what is wrong, and the means to put it right, rendered on the server.

| module | what | pure |
|---|---|---|
| `shape.py` | numbers, ages and times for people | yes |
| `overview.py`, `queues.py`, `dead.py` | values of the control plane become models of pages | yes |
| `places.py`, `task.py`, `cost.py` | the same of shards, groups, one task, today's usage | yes |
| `timers.py` | the same of what is parked | yes |
| `guard.py` | headers, the form token, what a form may say | yes |
| `files.py` | scripts and styles, checked by their sums | |
| `look.py`, `today.py` | one look, and one walk over a day, for everybody who watches | |
| `render.py` | models become HTML, by Jinja2 with escaping always on | |
| `desk.py` | what all routes have at hand, and the frame of every page | |
| `screens.py`, `actions.py` | routes that show, and routes that change | |
| `live.py` | the stream of events | |
| `site.py` | all of it as routes, and who may ask for them | |

Every screen works without a script: links, forms, and whole pages. With one, the part that is
marked as live is fetched again when the stream says that there is a newer look, and times are
shown in the viewer's zone. Nothing is rendered twice, once here and once in the browser, so there
is one place where a hostile text must be escaped, and it cannot be forgotten there.

Nothing here knows `late.api`, which lets people in: it passes a `Gate`.
"""
