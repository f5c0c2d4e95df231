'use strict';
// Elements, plots and numbers as people read them.

// Text that others have written, without characters that reverse or hide it.
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
const visible = (text) => (typeof text === 'string' ? text.replace(hidden, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`) : text);

// Makes an element. Text is always set as text, so that the content of a znode is never taken for
// markup.
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map(visible));
  return element;
}

const $ = (id) => document.getElementById(id);

function svg(tag, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const unknown = '–';

function count(value) {
  return value === null || value === undefined ? unknown : value.toLocaleString('en');
}

function time(ms) {
  if (ms === null || ms === undefined) return unknown;
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

// The median and the 99th percentile of a latency in the last minute.
function latency(of) {
  return of ? `${time(of.p50_us / 1000)} / ${time(of.p99_us / 1000)}` : 'none lately';
}

function bytes(value) {
  if (value === null || value === undefined) return unknown;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let power = 0;
  while (value >= 1024 && power < 4) { value /= 1024; power += 1; }
  return power === 0 ? `${value} B` : `${value.toFixed(1)} ${units[power]}`;
}

function clock(ms) {
  return new Date(ms).toLocaleTimeString('en-GB');
}

// A line plot over time. An unknown value is a gap in the line, and not zero. The line fills the width from the
// first sample on, so that the first minutes are not a sliver.
class Plot {
  constructor(name, show) {
    this.name = name;
    this.show = show;
    this.area = svg('path', { class: 'area' });
    this.lines = svg('path', { class: 'lines' });
    this.picture = svg('svg', { class: 'spark', viewBox: '0 0 120 30', preserveAspectRatio: 'none', role: 'img' });
    this.picture.append(this.area, svg('line', { class: 'base', x1: 0, y1: 30, x2: 120, y2: 30 }), this.lines);
    this.now = h('span', { class: 'now' }, unknown);
    this.most = h('span', { class: 'quiet' });
    this.from = h('span', { class: 'quiet' });
    this.element = h('div', { class: 'plot' }, h('div', { class: 'row' }, h('span', { class: 'quiet' }, name), this.now), this.picture, h('div', { class: 'row' }, this.from, this.most));
  }

  draw(times, values) {
    const known = values.filter((value) => value !== null);
    const most = known.length ? Math.max(...known) : null;
    const first = times[0];
    const span = Math.max(1, times[times.length - 1] - first);
    const x = (index) => (((times[index] - first) / span) * 120).toFixed(2);
    const y = (value) => (29 - (most > 0 ? value / most : 0) * 27).toFixed(2);
    let line = '';
    let area = '';
    let begun = -1;
    values.forEach((value, index) => {
      if (value === null) return;
      if (begun < 0) {
        begun = index;
        area += `M${x(index)} 30`;
      }
      line += `${begun === index ? 'M' : 'L'}${x(index)} ${y(value)}`;
      area += `L${x(index)} ${y(value)}`;
      if (index + 1 === values.length || values[index + 1] === null) {
        // A single sample is a dot.
        if (begun === index) line += `L${x(index)} ${y(value)}`;
        area += `L${x(index)} 30Z`;
        begun = -1;
      }
    });
    this.lines.setAttribute('d', line);
    this.area.setAttribute('d', area);
    const last = values[values.length - 1];
    this.now.textContent = this.show(last);
    this.most.textContent = `max ${this.show(most)}`;
    this.from.textContent = `since ${clock(first).slice(0, 5)}`;
    this.picture.setAttribute('aria-label', `${this.name}: now ${this.show(last)}, at most ${this.show(most)} since ${clock(first)}`);
  }
}

function facts(pairs) {
  return h('dl', { class: 'facts' }, ...pairs.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}
