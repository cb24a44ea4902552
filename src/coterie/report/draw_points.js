// Panels of points, each in the colour and shape of its group; tied panels show the same samples.
const COLOURS = ['blue', 'orange', 'green', 'purple', 'gold', 'sky', 'brown', 'ink'];
const SHAPES = [ // paths around (0, 0), about one unit from the middle to the edge
  'M-1,0A1,1 0 1,0 1,0A1,1 0 1,0 -1,0Z', 'M0,-1.5L1.4,0L0,1.5L-1.4,0Z', 'M-1,-1H1V1H-1Z',
  'M0,-1.4L1.4,1L-1.4,1Z', 'M0,1.4L1.4,-1L-1.4,-1Z', 'M-1.3,-.4H-.4V-1.3H.4V-.4H1.3V.4H.4V1.3H-.4V.4H-1.3Z',
  'M-1.4,-1.4L0,-.5L1.4,-1.4L.5,0L1.4,1.4L0,.5L-1.4,1.4L-.5,0Z', 'M-1.6,-.5H1.6V.5H-1.6Z',
];
const sign = group => ({
  colour: group < 0 ? 'ink' : COLOURS[group % 8],
  shape: SHAPES[group < 0 ? 0 : Math.floor(group / 8) % 8],
});
const place = (shape, x, y, size) => ({ d: shape, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})` });
const groupsOf = (spec, panel) => panel.of ?? spec.groups.of;

const panelLayout = (spec, width) => {
  const count = spec.panels.length, most = spec.side ?? 540;
  const across = Math.max(1, Math.min(count, Math.floor(width / 250), spec.across ?? 3));
  const side = Math.min(most, (width - 20 * (across - 1)) / across);
  return { across, side, down: Math.ceil(count / across) };
};

kinds.points = {
  legend: spec => spec.groups.names.map(([number, name]) => ({ name, ...sign(number) })),
  height(spec, width) {
    const { side, down } = panelLayout(spec, width);
    return down * (side + 34);
  },
  draw(c) {
    const { spec, group, width } = c, { across, side } = panelLayout(spec, width);
    const names = new Map(spec.groups.names), spots = [];
    const size = spec.panels[0].x.length > 300 ? 2.6 : 3.4;
    spec.panels.forEach((panel, p) => {
      const left = (p % across) * (side + 20), top = Math.floor(p / across) * (side + 34) + 24;
      group.append(write(left, top - 8, fit(panel.name, side), { fill: colour('ink'), 'font-weight': 600 }));
      group.append(svg('rect', { x: left, y: top, width: side, height: side, rx: 6, fill: colour('well') }));
      const ends = panel.ends ?? [Math.min(...panel.x), Math.max(...panel.x), Math.min(...panel.y), Math.max(...panel.y)];
      const inner = side - 24;
      const x = at => left + 12 + ((at - ends[0]) / (ends[1] - ends[0] || 1)) * inner;
      const y = at => top + 12 + (1 - (at - ends[2]) / (ends[3] - ends[2] || 1)) * inner;
      groupsOf(spec, panel).forEach((number, i) => {
        if (c.hidden.has(names.get(number))) return;
        const { colour: ink, shape } = sign(number), spot = { p, i, number, x: x(panel.x[i]), y: y(panel.y[i]) };
        spots.push(spot);
        group.append(svg('path', { ...place(shape, spot.x, spot.y, size), fill: colour(ink), 'fill-opacity': 0.8 }));
      });
    });
    return {
      count: spots.length,
      find(px, py) {
        const index = nearest(spots, spot => Math.hypot(spot.x - px, spot.y - py));
        return index >= 0 && Math.hypot(spots[index].x - px, spots[index].y - py) < 18 ? index : -1;
      },
      move: (index, dx, dy) => clamp(index + dx + dy, 0, spots.length - 1),
      show(index) {
        const own = spots[index], same = spec.tied ? spots.filter(spot => spot.i === own.i) : [own];
        for (const spot of same) {
          const ring = { cx: spot.x, cy: spot.y, r: size * 2.4, fill: 'none', stroke: colour('ink'), 'stroke-width': 2 };
          const look = sign(spot.number);
          c.marks.append(svg('path', { ...place(look.shape, spot.x, spot.y, size * 1.5), fill: colour(look.colour) }));
          c.marks.append(svg('circle', ring));
        }
        const lines = spec.samples
          ? spec.samples.map(([name, values]) => ['', name, String(values[own.i])])
          : [['', spec.groups.meaning, names.get(own.number)]];
        return { x: own.x + 10, y: own.y - 10, title: spec.panels[own.p].name, lines };
      },
    };
  },
  list(spec) {
    const names = new Map(spec.groups.names), more = spec.samples ?? [];
    const rows = [['panel', 'x', 'y', ...(more.length ? more.map(([name]) => name) : [spec.groups.meaning])]];
    for (const panel of spec.panels) {
      const of = groupsOf(spec, panel);
      panel.x.forEach((x, i) => rows.push([
        panel.name, x, panel.y[i], ...(more.length ? more.map(([, values]) => values[i]) : [names.get(of[i])]),
      ]));
    }
    return rows;
  },
};
