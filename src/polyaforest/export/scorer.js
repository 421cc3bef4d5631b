// Score rows with a model exported as JSON, in a browser or Node. Copy this file and codes.js: they need nothing else.
//
//     const scorer = new Scorer(await (await fetch("model.json")).json());
//     scorer.detect({ amount: 12.5, country: "DE" }); // { score, pValue, isAnomaly }

import { codeOf, newBits } from "./codes.js";

const LEAST_LOG = -1e300, LARGEST = 1e100, SMALLEST = 1e-100, SLACK = 1e-9, APART = 26;

const orElse = (value, missing) => (value === null ? missing : value); // null means a value that JSON cannot express
const sum = (values) => values.reduce((total, value) => total + value, 0);

export class Scorer {
  constructor(model) {
    if (model.format !== "polyaforest" || model.version !== 1) {
      throw new Error("this is not a polyaforest model of version 1");
    }
    this.model = model;
    this.lifetimes = model.score.lifetimes ?? [];
    this.nNumbers = model.n_numbers;
    this.trees = model.trees.map((tree) => this.decoded(tree));
  }

  decoded(tree) {
    const own = { ...tree, log_outside: orElse(tree.log_outside, -Infinity) };
    for (const [name, missing] of [["time", Infinity], ["log_mass", -Infinity], ["log_complement", -Infinity]]) {
      own[name] = tree[name].map((value) => orElse(value, missing));
    }
    for (const name of tree.lower ? ["lower", "upper"] : []) {
      own[name] = tree[name].map((places) => places.map((place, k) => this.model.corners[k][place]));
    }
    return own;
  }

  // Return the score of a row, its p-value (null without calibration scores), and whether it is an anomaly.
  detect(row) {
    const score = this.scoreRow(row), { calibration, threshold } = this.model;
    const own = this.model.score.type === "mass" ? Math.log(score) : score;
    const high = own > -Infinity ? own + SLACK * (1 + Math.abs(own)) : own;
    const rank = calibration.filter((known) => known <= high).length;
    const pValue = calibration.length ? (1 + rank) / (calibration.length + 1) : null;
    return { score, pValue, isAnomaly: threshold !== null && !(score >= threshold) };
  }

  // Return the score of a row, higher for normal ones: an object by column, or an array in the order of the columns.
  scoreRow(row) {
    const values = this.encoded(row);
    for (const [k, value] of this.model.replaced) values[k] = orElse(value, NaN);
    const isWhole = this.model.missing === "marginalise" || !values.some(Number.isNaN);
    const rows = isWhole ? [values] : this.completions(values);
    return sum(rows.map((one) => this.score(one))) / rows.length;
  }

  encoded(row) {
    const { columns, order } = this.model;
    const given = Array.isArray(row) ? row : columns.map((column) => row[column.name]);
    if (given.length !== columns.length) {
      throw new Error(`the row has ${given.length} values, but the model has ${columns.length} columns`);
    }
    return order.map((k, place) => {
      const value = given[k] ?? NaN;
      if (place >= this.nNumbers) return Number.isNaN(value) ? NaN : codeOf(value);
      const number = typeof value === "string" && !value.trim() ? NaN : Number(value);
      if (Number.isNaN(number) && !Number.isNaN(value)) throw new Error(`column ${columns[k].name}: not a number`);
      if (Math.abs(number) > LARGEST) throw new Error(`column ${columns[k].name} is ${number}, which is too large`);
      return Math.abs(number) < SMALLEST ? 0 : number;
    });
  }

  // Return a row completed with the values of the nearest donors.
  completions(row) {
    const { donors } = this.model, shared = [...row.keys()].filter((k) => !Number.isNaN(row[k]));
    if (!donors) throw new Error("the model cannot score rows with missing values");
    const distance = (donor) => sum(shared.map((k) => {
      const apart = Math.abs(row[k] / donors.spread[k] - donor[k] / donors.spread[k]);
      return k < this.nNumbers ? apart : Number(apart > 0) / donors.spread[k];
    })) / shared.length;
    let chosen = donors.default;
    if (shared.length) {
      const far = donors.rows.map(distance), byDistance = [...far.keys()].sort((a, b) => far[a] - far[b]);
      chosen = byDistance.slice(0, chosen.length);
    }
    return chosen.map((i) => row.map((value, k) => (Number.isNaN(value) ? donors.rows[i][k] : value)));
  }

  // Return the score of a row of numbers, less the cost of what is beyond margins and of rare pairs.
  score(row) {
    const { type, rank } = this.model.score, n = this.trees.length, nTimes = this.lifetimes.length;
    let score;
    if (type === "margins" || type === "typicality") {
      score = sum(this.trees.map((tree) => sum(this.cells(tree, row)))) / (n * nTimes);
    } else if (type === "multiscale") {
      const cells = this.trees.map((tree) => this.cells(tree, row));
      const means = this.lifetimes.map((_, s) => logSum(cells.map((logs) => logs[s])) - Math.log(n));
      score = sum(means) / nTimes;
    } else {
      const leaves = this.trees.map((tree) => this.leaf(tree, row));
      if (type === "epsilon") return rank ? Math.exp(leaves.sort((a, b) => a - b)[rank - 1]) : 0;
      score = sum(type === "log_mass" ? leaves : leaves.map(Math.exp)) / n;
    }
    return score - Math.LN2 * (this.marginBits(row) + this.pairBits(row));
  }

  marginBits(row) {
    const margins = this.model.margins;
    if (!margins) return 0;
    const nLow = row.filter((value, k) => value < orElse(margins.low[k], -Infinity)).length;
    return margins.bits * (nLow + row.filter((value, k) => value > orElse(margins.high[k], Infinity)).length);
  }

  pairBits(row) {
    const { bins, cells } = this.model.pairs ?? { bins: [], cells: [] };
    const places = bins.map(({ feature, values }) => {
      if (feature >= this.nNumbers) return values.indexOf(row[feature]);
      return Number.isNaN(row[feature]) ? -1 : values.filter((value) => value < row[feature]).length;
    });
    const own = cells.filter(([a, b, x, y]) => places[a] === x && places[b] === y);
    return own.reduce((most, cell) => Math.max(most, cell[4]), 0);
  }

  // Return the weighted distance of a row from a box; missing values count as inside.
  distance(weights, lower, upper, row) {
    let total = 0;
    for (let k = 0; k < row.length; k++) {
      if (Number.isNaN(row[k])) continue;
      if (k < this.nNumbers) total += weights[k] * Math.max(lower[k] - row[k], row[k] - upper[k], 0);
      else total += (weights[k] * (newBits(lower[k], upper[k], row[k]))) / APART;
    }
    return total;
  }

  // Return the children of a node that a row may go to: both if the value is missing.
  children(tree, j, row) {
    const value = row[tree.feature[j]], cut = tree.cut[j], isNumber = tree.feature[j] < this.nNumbers;
    if (Number.isNaN(value)) return [tree.left[j], tree.right[j]];
    const isLeft = isNumber ? value <= cut : Math.floor(value / 2 ** cut) % 2 === 0;
    return [isLeft ? tree.left[j] : tree.right[j]];
  }

  // Return the log of the mass of the row's cell at each lifetime.
  cells(tree, row) {
    const { weights, lower, upper, world } = tree, n = this.lifetimes.length, logs = Array(n).fill(-Infinity);
    const base = lower ? null : this.distance(weights, ...world, row);
    const waiting = [[0, 0, 0, 0]]; // node, when it was born, log-weight, first lifetime
    while (waiting.length) {
      let [j, began, weight, s] = waiting.pop();
      const ends = tree.time[j], isLeaf = tree.left[j] < 0;
      const rate = base ?? this.distance(weights, lower[j], upper[j], row);
      for (; s < n && (this.lifetimes[s] < ends || isLeaf); s++) {
        const hazard = rate > 0 ? (Math.min(this.lifetimes[s], ends) - began) * rate : 0;
        logs[s] = logSum([logs[s], tree.log_mass[j] + weight - hazard]);
      }
      if (s === n) continue;
      weight -= rate > 0 ? (ends - began) * rate : 0;
      for (const child of this.children(tree, j, row)) waiting.push([child, ends, weight, s]);
    }
    return logs.map((value) => Math.max(value, LEAST_LOG));
  }

  // Return the log of the mass of the row's leaf, or of all leaves that an incomplete row may be in.
  leaf(tree, row) {
    const { weights, world, lower, upper } = tree, numbers = [...Array(this.nNumbers).keys()];
    const reach = Math.min(this.distance(weights, ...world, row) / tree.size, -LEAST_LOG);
    const outside = tree.log_outside - Math.log1p(reach);
    if (this.distance(row.map(() => 1), ...world, row) > 0) return outside;
    const logs = row.some(Number.isNaN) ? [outside] : [], waiting = [[0, ...world]]; // node, its region
    while (waiting.length) {
      const [j, low, high] = waiting.pop();
      if (lower) { // a box: beyond it, and along missing values beside it, is the complementary leaf
        const live = numbers.filter((k) => lower[j][k] < upper[j][k]);
        const isBeyond = live.some((k) => row[k] < lower[j][k] || row[k] > upper[j][k]);
        const hasGap = (k) => Number.isNaN(row[k]) && lower[j][k] - low[k] + (high[k] - upper[j][k]) > 0;
        if (isBeyond || live.some(hasGap)) logs.push(tree.log_complement[j]);
        if (isBeyond) continue;
      }
      if (tree.left[j] < 0) { logs.push(tree.log_mass[j]); continue; }
      for (const child of this.children(tree, j, row)) { // the side of a category's cut is not used
        const region = lower ? [[...lower[j]], [...upper[j]]] : world;
        if (lower) region[child === tree.left[j] ? 1 : 0][tree.feature[j]] = tree.cut[j];
        waiting.push([child, ...region]);
      }
    }
    return logSum(logs);
  }
}

// Return the log of the sum of exponentials.
function logSum(logs) {
  const top = logs.reduce((a, b) => Math.max(a, b), -Infinity);
  return top > -Infinity ? top + Math.log(sum(logs.map((value) => Math.exp(value - top)))) : top;
}
