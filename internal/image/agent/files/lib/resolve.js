// Decides which node, and which script, a command of tool.sh runs, and installs what is missing.
//
//   resolve.js TOOL STORE KEY FILE...
//
// FILEs are what may say something, the nearest first. The decision is printed: node's path in the first line, the script's (or the
// program's) in the second. It is also kept in STORE/pins/KEY. The caller holds the store's lock.
'use strict'

const fs = require('fs')
const path = require('path')
const { spawnSync } = require('child_process')

const home = path.dirname(__dirname)
const modules = path.join(home, 'node_modules')
const semver = require(path.join(modules, 'npm/node_modules/semver'))
const [tool, store, key, ...files] = process.argv.slice(2)

// The lines of Node.js with long-term support by name; in each even year, one more begins in October.
const codenames = { argon: 4, boron: 6, carbon: 8, dubnium: 10, erbium: 12, fermium: 14, gallium: 16, hydrogen: 18, iron: 20, jod: 22, krypton: 24 }

const say = text => process.stderr.write(`harvest: ${text}\n`)

class Failure extends Error {}

function fail (text, remedy) {
  throw new Failure(`${text}\n  → ${remedy}`)
}

const bypass = 'HARVEST_NODE=default runs the version of the image instead'
const versionOf = name => JSON.parse(fs.readFileSync(path.join(modules, name, 'package.json'), 'utf8')).version

// What the image has, and where the registry has other versions.
const tools = {
  node: { name: 'Node.js', own: () => process.versions.node, package: () => `node-linux-${process.arch}`, main: 'bin/node', ownMain: process.execPath },
  npm: { name: 'npm', own: () => versionOf('npm'), package: () => 'npm', main: 'bin/npm-cli.js', ownMain: path.join(modules, 'npm/bin/npm-cli.js') },
  npx: { like: 'npm', name: 'npm', own: () => versionOf('npm'), package: () => 'npm', main: 'bin/npx-cli.js', ownMain: path.join(modules, 'npm/bin/npx-cli.js') },
  pnpm: {
    name: 'pnpm',
    own: () => versionOf('@pnpm/exe.linux-x64'),
    package: v => semver.major(v) >= 12 ? '@pnpm/exe.linux-x64' : 'pnpm', // a program by itself since 12
    list: 'pnpm',
    main: ['pnpm', 'bin/pnpm.mjs', 'bin/pnpm.cjs', 'bin/pnpm.js', 'lib/bin/pnpm.js'],
    ownMain: path.join(modules, '@pnpm/exe.linux-x64/pnpm')
  },
  yarn: {
    name: 'Yarn',
    own: () => versionOf('yarn'),
    package: v => semver.major(v) >= 2 ? '@yarnpkg/cli-dist' : 'yarn',
    main: 'bin/yarn.js',
    ownMain: path.join(modules, 'yarn/bin/yarn.js')
  }
}

let keep = true // whether the decision follows from the files alone

function readJSON (file) {
  try {
    const value = JSON.parse(fs.readFileSync(file, 'utf8').replace(/^\uFEFF/, ''))
    return value && typeof value === 'object' ? value : {}
  } catch (err) {
    say(`${file} is passed over: ${err.message}`)
    return {}
  }
}

// volta returns that part of a package.json, with what it extends.
function volta (file, depth = 0) {
  const own = readJSON(file).volta
  if (!own || typeof own !== 'object') return {}
  if (typeof own.extends !== 'string' || depth > 10) return own
  const above = path.resolve(path.dirname(file), own.extends)
  if (!files.includes(above)) keep = false
  return { ...volta(above, depth + 1), ...own }
}

// firstLine returns what a version file says: its first line that is no comment.
const firstLine = file => fs.readFileSync(file, 'utf8').split(/\r?\n/).map(l => l.replace(/#.*/, '').trim()).find(l => l) || ''

const text = v => typeof v === 'string' && v.trim() ? v.trim() : ''

// devEngine returns the version of a program in a package.json's devEngines.
function devEngine (json, kind, name) {
  const list = [].concat((json.devEngines && json.devEngines[kind]) || [])
  const found = list.find(e => e && e.name === name)
  return found ? text(found.version) || '*' : ''
}

// wish returns what the files say about a tool: { want, from }, or nothing. soft ones are limits, which the image's version meets or not.
function wish (name) {
  if (process.env.HARVEST_NODE && name === 'node') return { want: process.env.HARVEST_NODE, from: 'HARVEST_NODE' }
  const dirs = [...new Set(files.map(f => path.dirname(f)))]
  let soft
  for (const dir of dirs) {
    const has = base => files.includes(path.join(dir, base)) && path.join(dir, base)
    const manifest = has('package.json')
    const json = manifest ? readJSON(manifest) : {}
    const want = []
    if (manifest) want.push([text(volta(manifest)[name]), `${manifest} (volta)`])
    if (name === 'node') {
      for (const base of ['.nvmrc', '.node-version']) if (has(base)) want.push([firstLine(has(base)), has(base)])
      want.push([devEngine(json, 'runtime', name), `${manifest} (devEngines)`])
    } else {
      const [, manager, version] = /^(@?[^@]+)@(.+)$/.exec(text(json.packageManager)) || []
      if (manager === name) want.push([version.replace(/\+.*/, ''), `${manifest} (packageManager)`])
      want.push([devEngine(json, 'packageManager', name), `${manifest} (devEngines)`])
    }
    const found = want.find(([w]) => w)
    if (found) return { want: found[0], from: found[1] }
    const limit = json.engines && text(json.engines[name])
    if (limit && !soft) soft = { want: limit, from: `${manifest} (engines)`, soft: true }
  }
  return soft
}

// range turns what people write for a version of Node.js into a range, or a function of all versions.
function range (want) {
  const word = want.toLowerCase()
  const lts = /^lts\/(.+)$/.exec(word)
  if (lts && codenames[lts[1]]) return `^${codenames[lts[1]]}`
  if (lts || word === 'lts') return all => longTerm(all, lts ? lts[1] : '*')
  if (['node', 'latest', 'current', 'stable'].includes(word)) return () => '*'
  return semver.validRange(want.replace(/^v(?=\d)/, '').replace(/^node-?v?(?=\d)/, ''))
}

function longTerm (all, name) {
  const now = new Date()
  const begun = major => now >= new Date(Date.UTC(2013 + major / 2, 9, 28))
  const majors = [...new Set(all.map(v => semver.major(v)))].filter(m => m >= 4 && m % 2 === 0 && begun(m)).sort((a, b) => b - a)
  const back = name === '*' ? 0 : /^-\d+$/.test(name) ? -name : NaN
  return majors[back] === undefined ? null : `^${majors[back]}`
}

// npm runs the image's npm, without the project's settings, in an empty directory of the store.
function npm (dir, ...args) {
  const options = ['--no-audit', '--no-fund', '--no-update-notifier', '--loglevel=error', '--fetch-retries=1', '--fetch-retry-mintimeout=500', `--cache=${dir}/cache`]
  const env = { ...process.env }
  for (const name of Object.keys(env)) if (/^npm_(package|lifecycle|command|execpath|node)/i.test(name)) delete env[name]
  const done = spawnSync(process.execPath, [tools.npm.ownMain, ...args, ...options], { cwd: dir, env, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], maxBuffer: 64 << 20 })
  return { ok: done.status === 0, out: done.stdout || '', said: ((done.stderr || '') + (done.error || '')).trim().split('\n').slice(0, 3).join(' ') }
}

function inTemp (use) {
  fs.mkdirSync(store, { recursive: true })
  for (const name of fs.readdirSync(store)) { // of a process that was killed: we hold the lock
    if (name.startsWith('.new-')) fs.rmSync(path.join(store, name), { recursive: true, force: true })
  }
  const dir = fs.mkdtempSync(path.join(store, '.new-'))
  try { return use(dir) } finally { fs.rmSync(dir, { recursive: true, force: true }) }
}

// published returns all versions of a tool that the registry has.
function published (t, wished) {
  return inTemp(dir => {
    const names = t.list ? [t.list] : [...new Set(['1.0.0', '99.0.0'].map(t.package))] // before and after it was renamed
    const found = names.map(name => npm(dir, 'view', name, 'versions', '--json'))
    const good = found.filter(f => f.ok)
    if (good.length === 0) unreachable(t, wished, found[0].said)
    return good.flatMap(f => JSON.parse(f.out)).filter(v => semver.valid(v))
  })
}

function unreachable (t, { want, from }, said) {
  if (/\bE(TARGET|404)\b/.test(said)) fail(`${from} asks for ${t.name} ${want}, which the npm registry does not have`, `ask for one that it has; ${bypass}`)
  fail(`${from} asks for ${t.name} ${want}, which is not installed, and the npm registry does not give it: ${said}`,
    `let the sandbox reach the npm registry, or ask for a version that it has; ${bypass}`)
}

const installed = place => { try { return fs.readdirSync(place).filter(v => semver.valid(v)) } catch { return [] } }

// choose returns the version of a tool, which may have to be installed.
function choose (t, wished, place) {
  const own = t.own()
  if (!wished || wished.want === 'system' || wished.want === 'default') return own
  const exact = semver.valid(wished.want)
  if (exact) return exact
  let wanted = range(wished.want)
  if (wanted === null) {
    if (wished.soft) return own
    fail(`${wished.from} asks for ${t.name} ${JSON.stringify(wished.want.slice(0, 80))}, which is no version`, 'write one such as 20.11.1, 20, ^20.10, >=18 or lts/*')
  }
  let all
  if (typeof wanted === 'function') {
    all = published(t, wished)
    wanted = wanted(all)
  } else {
    if (semver.satisfies(own, wanted)) return own
    const here = semver.maxSatisfying(installed(place), wanted)
    if (here) return here
    all = published(t, wished)
  }
  const found = wanted && semver.maxSatisfying(all, wanted)
  if (found) return found
  if (wished.soft) {
    say(`${wished.from} wants ${t.name} ${wished.want}, which the npm registry does not have; ${own} runs instead`)
    return own
  }
  fail(`${wished.from} asks for ${t.name} ${wished.want}, which the npm registry does not have`, `ask for one that it has; ${bypass}`)
}

// install puts a package into a place of its own, in one step, so that nobody sees half of it.
function install (t, version, place, wished) {
  const target = path.join(place, version)
  if (fs.existsSync(target)) return target
  say(`installing ${t.name} ${version}, which ${wished.from} asks for`)
  inTemp(dir => {
    const name = t.package(version)
    fs.writeFileSync(path.join(dir, 'package.json'), '{}')
    const done = npm(dir, 'install', '--ignore-scripts', '--no-package-lock', '--no-save', '--prefix', dir, `${name}@${version}`)
    if (!done.ok) unreachable(t, { ...wished, want: version }, done.said)
    const from = path.join(dir, 'node_modules', name)
    const archs = path.join(from, 'include/node/openssl/archs') // headers for other machines, half of the package
    for (const arch of fs.existsSync(archs) ? fs.readdirSync(archs) : []) {
      if (!/^linux-(x86_64|aarch64)$/.test(arch)) fs.rmSync(path.join(archs, arch), { recursive: true })
    }
    if (t === tools.npm || t === tools.npx) fs.copyFileSync(path.join(modules, 'npm/npmrc'), path.join(from, 'npmrc'))
    fs.mkdirSync(place, { recursive: true })
    fs.renameSync(from, target)
  })
  return target
}

// get returns the path of a tool's program in the version that is wished for.
function get (name, wished) {
  const t = tools[name]
  const place = path.join(store, t.like || name)
  const version = choose(t, wished, place)
  if (version === t.own()) return { main: t.ownMain, version }
  const dir = install(t, version, place, wished)
  const main = [].concat(t.main).map(m => path.join(dir, m)).find(f => fs.existsSync(f))
  if (!main) fail(`${t.name} ${version} is not as expected: it has no ${[].concat(t.main)[0]}`, `remove ${dir}; ${bypass}`)
  return { main, version }
}

// manager returns what is wished for of a package manager. An npm goes with its node, unless the project says otherwise.
function manager (name, node) {
  const wished = wish(tools[name].like || name)
  if (tools[name].name !== 'npm' || (wished && !wished.soft)) return wished
  const from = `Node.js ${node}`
  if (semver.gte(node, '24.0.0')) return { want: '11', from }
  if (semver.satisfies(node, '^18.17.0 || >=20.5.0')) return undefined
  const [, want] = [['18.0.0', '9'], ['16.0.0', '8'], ['15.0.0', '7'], ['0.0.0', '6']].find(([least]) => semver.gte(node, least))
  return { want, from }
}

function decide () {
  const node = get('node', wish('node'))
  const script = tool === 'node' ? '' : get(tool, manager(tool, node.version)).main
  return `${node.main}\n${script}\n`
}

function remember (decision) {
  try {
    const temp = path.join(store, 'pins', `.${process.pid}`)
    fs.writeFileSync(temp, decision)
    fs.renameSync(temp, path.join(store, 'pins', key))
  } catch { /* then it is decided again the next time */ }
}

try {
  const decision = decide()
  if (keep) remember(decision)
  process.stdout.write(decision)
} catch (err) {
  say(err instanceof Failure ? err.message : `what the project asks for cannot be installed: ${err.message}\n  → ${bypass}`)
  process.exitCode = 1
}
