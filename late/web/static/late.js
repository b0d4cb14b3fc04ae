"use strict";
// Times, charts, the stream of events, keys. The page works without any of it.
(() => {
  // As the terminal, the logs and the alerts have them: UTC, 24 hours. The viewer's zone is a hover away.
  const zone = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
    second: "2-digit", hourCycle: "h23", timeZoneName: "short" });
  const clock = (moment, first = 11) => moment.toISOString().slice(first, 19).replace("T", " ");

  function times(root) {
    for (const each of root.querySelectorAll("time[datetime]:not([title])")) {
      const moment = new Date(each.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      each.title = zone.format(moment);
      const isToday = clock(moment, 0).slice(0, 10) === clock(new Date(), 0).slice(0, 10);
      each.textContent = `${clock(moment, isToday ? 11 : 0)} UTC`;
    }
  }

  // A line from top to bottom where something changed: the list below the charts names it.
  const MARKS = { change: "--fg", join: "--ok", death: "--bad" };
  function mark(plot, second, stroke) {
    const x = Math.round(plot.valToPos(second, "x", true)), { ctx, bbox } = plot, dot = devicePixelRatio;
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.save();
    ctx.strokeStyle = stroke;
    ctx.lineWidth = 1.5 * dot;
    ctx.setLineDash([3 * dot, 3 * dot]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }

  function chart(box) {
    const points = JSON.parse(box.dataset.chart);
    // One point makes no line: there is more to see in a moment.
    if (points.length < 2 || typeof uPlot === "undefined" || box.firstChild) return;
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    const columns = points[0].map((_, column) => points.map((point) => point[column]));
    const kind = box.dataset.kind, steps = kind === "steps", height = steps ? 220 : 150;
    // Decisions of an autoscaler may be days apart.
    const at = (second) => second == null ? "–"
      : steps ? clock(new Date(second * 1000), 5) : clock(new Date(second * 1000)).slice(0, 5);
    const seconds = (value) => value == null ? "–" : value < 120 ? `${+value.toPrecision(3)} s`
      : value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
    // A minute between two gaps is no line: it gets a dot.
    const alone = (plot, number) => plot.data[number].flatMap((value, place, all) =>
      value != null && all[place - 1] == null && all[place + 1] == null ? [place] : []);
    const line = (label, name, more) => ({ label, stroke: color(name), width: 2, points: { filter: alone }, ...more });
    const kinds = {
      steps: [line("Size", "--link", { paths: uPlot.paths.stepped({ align: 1 }) })],
      flow: [line("Arrived", "--dim", { dash: [4, 4] }), line("Ended", "--link")],
      failed: [line("Failed", "--bad")],
      wait: [line("Waited", "--warn", { value: (_, value) => seconds(value) })],
    };
    const series = [{ label: "UTC", value: (_, second) => at(second) }, ...kinds[kind]];
    const below = { ...axis, values: (_, ticks) => ticks.map(at) };
    const beside = { ...axis, size: 60, ...(kind === "wait" && { values: (_, ticks) => ticks.map(seconds) }) };
    const marks = JSON.parse(box.dataset.marks || "[]");
    const hour = {
      cursor: { sync: { key: "hour" } },
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      hooks: { draw: [(plot) => marks.forEach(([second, what]) => mark(plot, second, color(MARKS[what])))] },
    };
    const plot = new uPlot({ width: box.clientWidth || 320, height, series, axes: [below, beside], ...(!steps && hour) },
      columns, box);
    // In the next frame: a size that is changed while sizes are told of would be told of again.
    new ResizeObserver(() => requestAnimationFrame(() => {
      const width = box.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height });
    })).observe(box);
  }

  function dress(root) {
    times(root);
    root.querySelectorAll("[data-chart]").forEach(chart);
  }

  // What somebody types into or has opened is not taken away from under the hands.
  function busy() {
    const live = document.getElementById("live");
    const at = document.activeElement;
    return document.hidden || !live || live.querySelector("details[open]") ||
      (live.contains(at) && at.matches("input, select, textarea"));
  }

  // A button that is replaced between the press and the release gets no click. Pages that were asked
  // for before the press come in between too.
  let pressed = false;
  addEventListener("pointerdown", () => { pressed = true; });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { pressed = false; });
  document.addEventListener("htmx:beforeSwap", (event) => { if (pressed) event.detail.shouldSwap = false; });

  let stream = null, later = 0, warning = 0;

  // Told only when it lasts: a stream is joined again within seconds of a break.
  function lost(is, after) {
    const notice = document.getElementById("lost");
    if (!notice) return;
    if (is) {
      // The first break counts: the browser tries again and again, and each try is one.
      warning = warning || setTimeout(() => { notice.hidden = false; }, after);
      return;
    }
    clearTimeout(warning);
    warning = 0;
    notice.hidden = true;
  }

  function refresh() {
    if (!busy()) document.body.dispatchEvent(new Event("late:look"));
  }

  // Only while it is in sight: a browser has six connections for one host, and a stream takes one.
  function listen() {
    const from = document.body.dataset.live;
    if (!from || typeof EventSource === "undefined" || stream || document.hidden) return;
    stream = new EventSource(from);
    stream.addEventListener("open", () => lost(false));
    stream.addEventListener("look", refresh);
    stream.addEventListener("error", () => {
      lost(true, 5000);
      // Refused, and not tried again by the browser: full, or signed out meanwhile.
      if (stream && stream.readyState === EventSource.CLOSED) {
        leave();
        later = setTimeout(listen, 20000 + Math.random() * 20000);
      }
    });
  }

  function leave() {
    clearTimeout(later);
    if (stream) stream.close();
    stream = null;
  }

  function appear() {
    if (document.hidden) leave();
    else { listen(); refresh(); }
  }

  // The search box: a list of suggestions below a field, as ARIA's combobox has it. The field keeps the
  // focus; an arrow marks one, Enter goes there, Escape closes the list.
  function search(field) {
    const list = document.getElementById("found"), count = document.getElementById("found-count");
    let at = -1, asked = 0, shown = "", later = 0;
    const options = () => [...list.children];
    function close() {
      clearTimeout(later);
      asked++;
      at = -1;
      shown = "";
      list.hidden = true;
      list.replaceChildren();
      count.textContent = "";
      field.setAttribute("aria-expanded", "false");
      field.removeAttribute("aria-activedescendant");
    }
    function choose(number) {
      at = number;
      options().forEach((each, place) => each.setAttribute("aria-selected", String(place === at)));
      if (at < 0) field.removeAttribute("aria-activedescendant");
      else {
        field.setAttribute("aria-activedescendant", options()[at].id);
        options()[at].scrollIntoView({ block: "nearest" });
      }
    }
    function option(each, place) {
      const item = document.createElement("li"), kind = document.createElement("span");
      Object.assign(item, { id: `found-${place}`, textContent: each.name });
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", "false");
      item.dataset.href = new URL(each.href, new URL(".", field.form.action)).href;
      Object.assign(kind, { className: "note", textContent: each.kind });
      item.append(kind);
      return item;
    }
    async function look() {
      const text = field.value.trim(), mine = ++asked;
      if (!text) return close();
      const reply = await fetch(`${field.form.action}?q=${encodeURIComponent(text)}`,
        { headers: { Accept: "application/json" } }).catch(() => null);
      // An answer that was overtaken says nothing of what is in the field now.
      if (mine !== asked || !reply || !reply.ok || reply.redirected) return;
      const found = await reply.json();
      if (mine !== asked) return;
      list.replaceChildren(...found.map(option));
      shown = text;
      list.hidden = !found.length;
      field.setAttribute("aria-expanded", String(!!found.length));
      choose(-1);
      count.textContent = found.length === 1 ? "1 suggestion" : `${found.length} suggestions`;
    }
    field.addEventListener("input", () => { clearTimeout(later); later = setTimeout(look, 120); });
    field.addEventListener("blur", close);
    field.addEventListener("keydown", (event) => {
      const many = options().length, step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && many) choose(at < 0 ? (step > 0 ? 0 : many - 1) : (at + step + many) % many);
      else if (step) look();
      else if (event.key === "Escape" && !list.hidden) close();
      // Without a mark the first one counts, if the list is of what is in the field.
      else if (event.key === "Enter" && many && (at >= 0 || shown === field.value.trim()))
        location.assign(options()[Math.max(at, 0)].dataset.href);
      else return;
      event.preventDefault();
    });
    // The press would take the focus from the field, and close the list before the click.
    list.addEventListener("mousedown", (event) => event.preventDefault());
    list.addEventListener("click", (event) => {
      const item = event.target.closest("[role=option]");
      if (item) location.assign(item.dataset.href);
    });
  }

  let going = false;
  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    if (event.key === "/") {
      const find = document.querySelector(".find input");
      if (find) { event.preventDefault(); find.focus(); }
    } else if (going) {
      const link = document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    }
    going = !going && event.key === "g";
  }

  document.addEventListener("DOMContentLoaded", () => {
    dress(document);
    document.querySelectorAll(".find input").forEach(search);
    listen();
  });
  // Before it is painted: nobody sees times that are not in the zone of the reader.
  document.addEventListener("htmx:afterSwap", () => { lost(false); dress(document); });
  for (const failed of ["htmx:responseError", "htmx:sendError"])
    document.addEventListener(failed, () => lost(true, 0));
  document.addEventListener("visibilitychange", appear);
  addEventListener("pagehide", leave);
  addEventListener("pageshow", (event) => { if (event.persisted) appear(); });
  document.addEventListener("keydown", key);
})();
