// Draws the charts. A colour `@name` is the variable `--name` of style.css, looked up at every
// drawing: the charts follow the theme. A printer gets the light theme and a width that fits its
// paper; a finger keeps its swipe for scrolling.
(() => {
  const root = document.documentElement, dark = matchMedia('(prefers-color-scheme: dark)');
  const touch = !matchMedia('(any-hover: hover)').matches;
  const draw = width => {
    const css = getComputedStyle(root);
    const colour = v => typeof v === 'string' && v[0] === '@'
      ? css.getPropertyValue('--' + v.slice(1)).trim() : v;
    const themed = (key, v) => key === 'colorscale' ? v.map(([at, c]) => [at, colour(c)])
      : /color$/.test(key) ? colour(v) : v;
    for (const div of document.querySelectorAll('.chart')) {
      const { data, layout } = JSON.parse(div.nextElementSibling.textContent, themed);
      if (width) Object.assign(layout, { width, autosize: false });
      if (touch) layout.dragmode = false;
      Plotly.react(div, data, layout, {
        responsive: true, displayModeBar: touch ? false : 'hover',
        modeBarButtons: [['toImage', 'resetScale2d']], displaylogo: false,
      });
    }
  };
  draw();
  dark.addEventListener('change', () => draw());
  addEventListener('beforeprint', () => { root.classList.add('printing'); draw(680); });
  addEventListener('afterprint', () => { root.classList.remove('printing'); draw(); });
})();
