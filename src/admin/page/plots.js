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

// How many samples are kept: two minutes.
const SAMPLES = 120;

// A small line plot of the last samples. An unknown sample is a gap in the line, and not zero.
class Spark {
  constructor(name, show) {
    this.name = name;
    this.show = show;
    this.samples = [];
    this.area = svg('path', { class: 'area' });
    this.lines = svg('path', { class: 'lines' });
    this.element = svg('svg', { class: 'spark', viewBox: '0 0 120 30', preserveAspectRatio: 'none', role: 'img' });
    this.element.append(this.area, svg('line', { class: 'base', x1: 0, y1: 30, x2: 120, y2: 30 }), this.lines);
  }

  push(value) {
    this.samples.push(value === undefined ? null : value);
    if (this.samples.length > SAMPLES) this.samples.shift();
    this.draw();
  }

  get most() {
    const known = this.samples.filter((value) => value !== null);
    return known.length ? Math.max(0, ...known) : null;
  }

  draw() {
    const { samples, most } = this;
    const x = (index) => 120 - (samples.length - 1 - index) * (120 / (SAMPLES - 1));
    const y = (value) => 29 - (most > 0 ? value / most : 0) * 27;
    let line = '';
    let area = '';
    let begun = -1;
    samples.forEach((value, index) => {
      if (value === null) return;
      if (begun < 0) begun = index;
      line += `${begun === index ? 'M' : 'L'}${x(index).toFixed(2)} ${y(value).toFixed(2)}`;
      if (begun === index) area += `M${x(index).toFixed(2)} 30`;
      area += `L${x(index).toFixed(2)} ${y(value).toFixed(2)}`;
      if (index + 1 === samples.length || samples[index + 1] === null) {
        area += `L${x(index).toFixed(2)} 30Z`;
        begun = -1;
      }
    });
    this.lines.setAttribute('d', line);
    this.area.setAttribute('d', area);
    const last = samples[samples.length - 1];
    this.element.setAttribute('aria-label', `${this.name}: now ${this.show(last)}, at most ${this.show(most)} in two minutes`);
  }
}

// A plot with its name, its present value and the highest one.
function plot(name, show) {
  const spark = new Spark(name, show);
  const now = h('span', { class: 'now' }, unknown);
  const most = h('span', { class: 'quiet', title: 'in the last two minutes' });
  const element = h('div', { class: 'plot' }, h('div', { class: 'row' }, h('span', { class: 'quiet' }, name), now), spark.element, h('div', { class: 'row' }, most));
  return {
    element,
    push(value) {
      spark.push(value);
      now.textContent = show(value);
      most.textContent = `max ${show(spark.most)}`;
    },
  };
}

function facts(pairs) {
  return h('dl', { class: 'facts' }, ...pairs.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}
