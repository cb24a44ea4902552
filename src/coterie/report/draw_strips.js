// Rows of points along one axis, each with a box around its middle half and a line at its median.
const STRIP = 46; // pixels of a row

kinds.strips = {
  legend: () => [],
  height: spec => 30 + spec.labels.length * STRIP + 44,
  draw(c) {
    const { spec, group, width, height } = c;
    const { labels, groups } = spec, names = shorter(labels, width * 0.32);
    const top = 24, bottom = height - 44;
    const left = Math.max(...names.map(name => measure(name)), measure(spec.row) - 8) + 14;
    const right = width - 14, ends = groups.flatMap(one => [one.five[0], one.five[4]]);
    const x = makeScale(spec.x, ends, left, right, clamp((right - left) / 80, 2, 8));
    for (const tick of x.ticks) {
      group.append(svg('line', { x1: x(tick), x2: x(tick), y1: top, y2: bottom, stroke: colour('grid') }));
    }
    group.append(write(0, 14, spec.row));
    groups.forEach((one, r) => {
      const middle = top + (r + 0.5) * STRIP, ink = colour(one.colour), [low, first, median, third, high] = one.five.map(x);
      group.append(write(left - 10, middle + 4, names[r], { 'text-anchor': 'end' }));
      group.append(svg('line', { x1: low, x2: high, y1: middle, y2: middle, stroke: ink, 'stroke-width': 1.5 }));
      group.append(svg('rect', { x: first, y: middle - 12, width: Math.max(2, third - first), height: 24, rx: 4, fill: colour('card') }));
      group.append(svg('rect', { x: first, y: middle - 12, width: Math.max(2, third - first), height: 24, rx: 4, fill: ink, 'fill-opacity': 0.18, stroke: ink, 'stroke-width': 1.5 }));
      one.values.forEach((value, i) => {
        const shift = ((i * 7) % 11 - 5) * 1.5; // points of one value do not hide each other
        group.append(svg('circle', { cx: x(value), cy: middle + shift, r: 3, fill: ink, 'fill-opacity': 0.55 }));
      });
      group.append(svg('line', { x1: median, x2: median, y1: middle - 14, y2: middle + 14, stroke: colour('ink'), 'stroke-width': 2.5 }));
    });
    drawWidthAxis(group, spec.x, x, bottom);
    return {
      ...findRows(labels.length, top, STRIP),
      show(index) {
        const one = groups[index], [low, first, median, third, high] = one.five.map(read);
        const box = { x: 0, y: top + index * STRIP, width, height: STRIP, fill: colour('ink'), 'fill-opacity': 0.07 };
        c.marks.append(svg('rect', box));
        const lines = [
          ['', `lowest (${one.names[0]})`, low], ['', 'a quarter below', first], [one.colour, 'median', median],
          ['', 'a quarter above', third], ['', `highest (${one.names[one.names.length - 1]})`, high], ['', 'points', read(one.count)],
        ];
        return { x: x(one.five[2]), y: top + index * STRIP, title: labels[index], lines };
      },
    };
  },
  list: spec => [
    [spec.row, 'client', spec.x.label],
    ...spec.labels.flatMap((name, r) => spec.groups[r].values.map((value, i) => [name, spec.groups[r].names[i], value])),
  ],
};
