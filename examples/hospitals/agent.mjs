// The fifth hospital's agent, in JavaScript: a DQN with one hidden layer, and its own patients.
// ../remote/node/member.mjs connects it to a federation. hiv.py has the model's references.
const [START, DAYS, DECISIONS] = [[163573, 5, 11945, 46, 63919, 24], 5, 200];
const [LOG_UNIT, INPUTS, ACTIONS, HIDDEN] = [1e4, 6, 4, 128];
const [LEARNING_STARTS, BATCH, TRAININGS, MIXING] = [1000, 64, 2, 0.01];
const [LEARNING_RATE, FINAL_EPSILON, ANNEALING_SHARE] = [1e-3, 0.1, 0.2];
const [IMPROVEMENT_RATE, IMPROVEMENT_STEPS] = [1e-4, 2];
const WEIGHTS = HIDDEN * (INPUTS + 1 + ACTIONS) + ACTIONS; // by layer: weights, then biases
const [BIAS1, WEIGHT2] = [HIDDEN * INPUTS, HIDDEN * (INPUTS + 1)];
const BIAS2 = WEIGHT2 + HIDDEN * ACTIONS;

/** Return the change of each variable in a day, under drugs of these efficacies. */
function rates([T1, T2, I1, I2, V, E], rti, pi) {
  const [infection1, infection2] = [(1 - rti) * 8e-7 * T1, (1 - 0.34 * rti) * 1e-4 * T2];
  const [clearance, infected] = [0.7 + 1e-5 * E, I1 + I2];
  const response = (0.3 * infected) / (infected + 100) - (0.25 * infected) / (infected + 500);
  return [
    1e4 - 0.01 * T1 - infection1 * V,
    31.98 - 0.01 * T2 - infection2 * V,
    infection1 * V - clearance * I1,
    infection2 * V - clearance * I2,
    (1 - pi) * 70 * infected - (13 + infection1 + infection2) * V,
    1 + (response - 0.1) * E,
  ];
}

/** Return the state after 5 days, by the Runge-Kutta method of order 4, and their reward. */
export function treat(state, action) {
  const [rti, pi] = [0.7 * (action % 2), 0.3 * Math.floor(action / 2)];
  const moved = (x, k, days) => x.map((each, i) => each + days * k[i]);
  let x = state;
  for (let left = DAYS; left > 0;) {
    const days = Math.min(0.5 / (14 + 1e-4 * x[4] + 1e-5 * x[5]), left);
    const k1 = rates(x, rti, pi);
    const k2 = rates(moved(x, k1, days / 2), rti, pi);
    const k3 = rates(moved(x, k2, days / 2), rti, pi);
    const k4 = rates(moved(x, k3, days), rti, pi);
    x = moved(x, k1.map((k, i) => k + 2 * (k2[i] + k3[i]) + k4[i]), days / 6);
    left -= days;
  }
  const published = 1000 * x[5] - 0.1 * x[4] - 20_000 * rti ** 2 - 2_000 * pi ** 2;
  return [x, Math.sign(published) * Math.log10(1 + Math.abs(published) / LOG_UNIT)];
}

/** Return the states of a batch, whose numbers come in one array. */
function inRows(numbers) {
  const count = numbers.length / INPUTS;
  return Array.from({ length: count }, (_, b) => numbers.slice(b * INPUTS, (b + 1) * INPUTS));
}

/** Return what the hidden layer answers to a state, and the values of the four actions. */
function forward(weights, state) {
  const hidden = new Float64Array(HIDDEN);
  for (let j = 0; j < HIDDEN; j += 1) {
    let sum = weights[BIAS1 + j];
    for (let i = 0; i < INPUTS; i += 1) sum += weights[j * INPUTS + i] * state[i];
    hidden[j] = Math.max(sum, 0);
  }
  const values = new Float64Array(ACTIONS);
  for (let a = 0; a < ACTIONS; a += 1) {
    let sum = weights[BIAS2 + a];
    for (let j = 0; j < HIDDEN; j += 1) sum += weights[WEIGHT2 + a * HIDDEN + j] * hidden[j];
    values[a] = sum;
  }
  return [hidden, values];
}

/** Take one step of Adam towards targets, which are given as [state, action, target]s. */
function regress(weights, adam, rows, learningRate) {
  const gradient = new Float64Array(WEIGHTS);
  for (const [state, action, target] of rows) {
    const [hidden, values] = forward(weights, state);
    const error = Math.max(-1, Math.min(1, values[action] - target)) / rows.length; // Huber
    gradient[BIAS2 + action] += error;
    for (let j = 0; j < HIDDEN; j += 1) {
      if (hidden[j] > 0) {
        const back = error * weights[WEIGHT2 + action * HIDDEN + j];
        gradient[WEIGHT2 + action * HIDDEN + j] += error * hidden[j];
        gradient[BIAS1 + j] += back;
        for (let i = 0; i < INPUTS; i += 1) gradient[j * INPUTS + i] += back * state[i];
      }
    }
  }
  adam.steps += 1;
  const [first, second] = [1 - 0.9 ** adam.steps, 1 - 0.999 ** adam.steps];
  for (let i = 0; i < WEIGHTS; i += 1) {
    adam.mean[i] += 0.1 * (gradient[i] - adam.mean[i]);
    adam.square[i] += 0.001 * (gradient[i] ** 2 - adam.square[i]);
    weights[i] -= (learningRate * adam.mean[i]) / first / (Math.sqrt(adam.square[i] / second) + 1e-8);
  }
}

/** Return an agent for a task; throw an Error if the task is not for it. */
export function createAgent({ environment, options, discount, ...task }, seed) {
  const { spread = '0.2', ...others } = options;
  const form = [environment, task.state_dtype, ...task.state_shape, task.actions];
  const asked = [...form, ...Object.keys(others)].join();
  if (asked !== 'hiv:HIV-v0,float32,6,4') throw new Error(`this agent cannot treat ${asked}`);
  const annealing = ANNEALING_SHARE * Number(task.env_steps_per_member);
  const newAdam = () => ({ mean: Array(WEIGHTS).fill(0), square: Array(WEIGHTS).fill(0), steps: 0 });
  let saved = { seed, envSteps: 0, improvements: 0, decision: 0, patient: null, replay: [],
    learner: newAdam(), improver: newAdam() };

  function random() { // from 0 to 1: mulberry32, whose state JSON can hold
    saved.seed = (saved.seed + 0x6d2b79f5) >>> 0;
    let t = Math.imul(saved.seed ^ (saved.seed >>> 15), 1 | saved.seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }
  const oneOf = (count) => Math.floor(random() * count);
  const wide = (fanIn) => (2 * random() - 1) / Math.sqrt(fanIn);
  saved.weights = Array.from({ length: WEIGHTS }, (_, i) => wide(i < WEIGHT2 ? INPUTS : HIDDEN));
  saved.target = [...saved.weights];

  function epsilon() {
    if (saved.envSteps < LEARNING_STARTS) return 1;
    return Math.max(FINAL_EPSILON, 1 - ((1 - FINAL_EPSILON) * saved.envSteps) / annealing);
  }

  function step() {
    const factor = () => (1 + Number(spread)) ** (2 * random() - 1);
    saved.patient ??= START.map((variable) => variable * factor());
    const state = saved.patient.map(Math.log10);
    const values = forward(saved.weights, state)[1];
    const action = random() < epsilon() ? oneOf(ACTIONS) : values.indexOf(Math.max(...values));
    const [next, reward] = treat(saved.patient, action);
    saved.replay.push([state, action, reward, next.map(Math.log10)]);
    saved.envSteps += 1;
    saved.decision = (saved.decision + 1) % DECISIONS;
    saved.patient = saved.decision === 0 ? null : next; // null: another patient comes
    for (let i = 0; i < TRAININGS && saved.envSteps >= LEARNING_STARTS; i += 1) train();
  }

  function train() {
    const rows = Array.from({ length: BATCH }, () => {
      const [state, action, reward, next] = saved.replay[oneOf(saved.replay.length)];
      return [state, action, reward + discount * Math.max(...forward(saved.target, next)[1])];
    });
    regress(saved.weights, saved.learner, rows, LEARNING_RATE);
    for (let i = 0; i < WEIGHTS; i += 1) {
      saved.target[i] += MIXING * (saved.weights[i] - saved.target[i]);
    }
  }

  return {
    states: ['float32', -10, 10, [INPUTS]], // type, lowest and highest number, shape
    selfLearn: (envSteps) => { for (let i = 0; i < envSteps; i += 1) step(); },
    qValues: (numbers) => Float32Array.from(
      inRows(numbers).flatMap((state) => [...forward(saved.weights, state)[1]])),
    improve: (numbers, actions, targets) => {
      const rows = inRows(numbers).map((state, i) => [state, actions[i], targets[i]]);
      for (let i = 0; i < IMPROVEMENT_STEPS; i += 1) {
        regress(saved.weights, saved.improver, rows, IMPROVEMENT_RATE);
      }
      saved.target = [...saved.weights];
      saved.improvements += 1;
    },
    save: () => saved,
    restore: (before) => { saved = before; },
  };
}
