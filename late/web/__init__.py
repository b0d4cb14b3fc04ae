"""The page for operators, rendered on the server: it shows problems and the means to solve them.

| module | contents | pure |
|---|---|---|
| `models/` | values of the control plane become models of screens | yes |
| `formats.py` | numbers, ages and times for people | yes |
| `access/` | rules of routes, the form token, bounds of forms, signing in |  |
| `static_files.py` | scripts and styles, checked by their sums | |
| `snapshot.py`, `usage/today.py` | one read for all visitors, and the sum of the day so far | |
| `usage/cost_report.py` | the last cost report | |
| `render.py` | models become HTML, by Jinja2 with escaping always on | |
| `page_context.py` | the values that all routes share, and the frame of every page | |
| `views.py`, `actions.py` | routes that show, and routes that change | |
| `event_stream.py` | the stream of events | |
| `routes.py` | the page as routes, and the check of visitors | |

Every screen works without a script: links, forms, and whole pages. With one, the part that is
marked as live is fetched again when the stream says that there is a newer look, and times are
shown in the viewer's zone. The browser never renders what the server renders. So there is one
place where a hostile text must be escaped, and it cannot be forgotten there.

This package does not import `late.api`, which admits callers and passes a `Gate`.
"""
