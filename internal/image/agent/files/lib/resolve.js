// Decides which node, and which script, a command of tool.sh runs, and installs what is missing.
//
//   resolve.js TOOL STORE KEY FILE...
//
// FILEs are what may say something, the nearest first. The decision is printed: node's path in the first line, the script's (or the
// program's) in the second. It is also kept in STORE/pins/KEY. The caller holds the store's lock.
'use strict'

const crypto = require('crypto')
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
    list: 'pnpm', // whose digests packageManager has
    main: ['pnpm', 'bin/pnpm.mjs', 'bin/pnpm.cjs', 'bin/pnpm.js', 'lib/bin/pnpm.js'],
    ownMain: path.join(modules, '@pnpm/exe.linux-x64/pnpm')
  },
  yarn: {
    name: 'Yarn',
    own: () => versionOf('yarn'),
    package: v => semver.major(v) >= 2 ? '@yarnpkg/cli-dist' : 'yarn',
    main: 'bin/yarn.js',
    digested: v => semver.major(v) >= 2 ? 'bin/yarn.js' : '',
    ownMain: path.join(modules, 'yarn/bin/yarn.js')
  }
}

// Bun has no version in the image. Its program for old processors runs on all of them.
tools.bun = { name: 'Bun', own: () => '', package: () => '@oven/bun-linux-x64-baseline', main: 'bin/bun' }

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
const firstLine = file => fs.readFileSync(file, 'utf8').replace(/^\uFEFF/, '').split(/\r?\n/).map(l => l.replace(/#.*/, '').trim()).find(l => l) || ''

const text = v => typeof v === 'string' && v.trim() ? v.trim() : ''

// devEngine returns the version of a program in a package.json's devEngines.
function devEngine (json, kind, name) {
  const list = [].concat((json.devEngines && json.devEngines[kind]) || [])
  const found = list.find(e => e && e.name === name)
  return found ? text(found.version) || '*' : ''
}

// pin reads what packageManager says after the name: a version or an address, and perhaps a digest of it.
function pin (said, from) {
  const url = /^https?:\/\//.test(said)
  const [want, digest] = said.split(url ? /#(.*)/s : /\+(.*)/s)
  if (digest === undefined) return { want, from, url }
  const [, algorithm, hex] = /^([a-z0-9-]+)\.([0-9a-f]+)$/i.exec(digest) || []
  if (!crypto.getHashes().includes(algorithm)) fail(`${from} has ${JSON.stringify(digest.slice(0, 40))}, which is no digest that Node.js knows`, 'write one such as +sha512.<hexadecimal digits>, or none')
  return { want, from, url, algorithm, digest: hex.toLowerCase() }
}

// The line of pnpm that reads a lock file of this version as it was meant. Since 8, pnpm refuses locks of earlier lines; since 11, it fails on
// build scripts that nobody has approved. Locks of pnpm 11 and later that say so begin with a document of their own.
const pnpmOfLock = { 5: '7', 6: '8', 9: '10' }

// lockWish returns the version of pnpm that the nearest lock file suggests.
function lockWish () {
  const file = files.find(f => path.basename(f) === 'pnpm-lock.yaml')
  if (!file) return
  const head = fs.readFileSync(file, 'utf8').slice(0, 64 << 10)
  if (/^ *(packageManagerDependencies|configDependencies):/m.test(head)) return
  const [, version, major] = /^lockfileVersion: *['"]?((\d+)(?:\.\d+)?)/m.exec(head) || []
  const want = pnpmOfLock[major]
  return want && { want, from: `${file} (version ${version})`, soft: true, guess: true }
}

// within returns the wish of a lock file where the limits of engines allow it.
function within (limit, lock) {
  if (!limit || !lock) return limit || lock
  return semver.validRange(limit.want) && semver.intersects(limit.want, lock.want) ? { ...lock, limit: limit.want } : limit
}

// The names of tools in the files of asdf and mise.
const names = { node: ['nodejs', 'node'] }

// listed returns the version of a tool in .tool-versions (asdf) or mise.toml.
function listed (file, name) {
  const known = names[name] || [name]
  if (file.endsWith('.tool-versions')) {
    const lines = fs.readFileSync(file, 'utf8').replace(/^\uFEFF/, '').split(/\r?\n/).map(l => l.replace(/#.*/, '').trim().split(/\s+/))
    const [, version] = lines.find(([tool]) => known.includes(tool)) || []
    return version || ''
  }
  const read = 'import json, sys, tomllib; json.dump(tomllib.loads(open(sys.argv[1], encoding="utf-8-sig").read()).get("tools", {}), sys.stdout, default=str)'
  const done = spawnSync('python3', ['-c', read, file], { encoding: 'utf8' })
  if (done.status !== 0) {
    say(`${file} is passed over: ${(done.stderr || String(done.error || '')).trim().split('\n').pop()}`)
    return ''
  }
  const tools = JSON.parse(done.stdout)
  const [first] = [].concat(tools[known.find(k => tools[k])] || '')
  return text(first && typeof first === 'object' ? first.version : first)
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
    } else {
      const [, manager, version] = /^(@?[^@]+)@(.+)$/.exec(text(json.packageManager)) || []
      if (manager === name) want.push([version, `${manifest} (packageManager)`, pin])
      want.push([devEngine(json, 'packageManager', name), `${manifest} (devEngines)`])
      if (has(`.${name}-version`)) want.push([firstLine(has(`.${name}-version`)), has(`.${name}-version`)])
    }
    for (const base of ['.tool-versions', 'mise.toml', '.mise.toml']) if (has(base)) want.push([listed(has(base), name), has(base)])
    want.push([devEngine(json, 'runtime', name), `${manifest} (devEngines)`])
    const found = want.find(([w]) => w && !/^(ref|path|prefix|sub-\d+):/.test(w))
    if (found) return found[2] ? found[2](found[0], found[1]) : { want: found[0], from: found[1] }
    const limit = json.engines && text(json.engines[name])
    if (limit && !soft) soft = { want: limit, from: `${manifest} (engines)`, soft: true }
  }
  return name === 'pnpm' ? within(soft, lockWish()) : soft
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
    if (name.startsWith('.new-') && !name.startsWith(`.new-${process.pid}-`)) fs.rmSync(path.join(store, name), { recursive: true, force: true })
  }
  const dir = fs.mkdtempSync(path.join(store, `.new-${process.pid}-`))
  try { return use(dir) } finally { fs.rmSync(dir, { recursive: true, force: true }) }
}

// published returns all versions of a tool that the registry has.
function published (t, wished) {
  return inTemp(dir => {
    const names = t.list ? [t.list] : [...new Set(['1.0.0', '99.0.0'].map(t.package))] // before and after it was renamed
    const found = names.map(name => npm(dir, 'view', name, 'versions', '--json'))
    const good = found.filter(f => f.ok)
    if (good.length === 0 && wished.guess) return []
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
    const best = all => semver.maxSatisfying(all.filter(v => !wished.limit || semver.satisfies(v, wished.limit)), wanted)
    const here = best([own]) || best(installed(place))
    if (here) return here
    all = published(t, wished)
    wanted = best(all)
  }
  const found = wanted && semver.maxSatisfying(all, wanted)
  if (found) return found
  if (wished.soft) {
    if (all.length === 0) keep = false
    say(`${wished.from} wants ${t.name} ${wished.want}, which the npm registry does not ${all.length ? 'have' : 'give'}; ${own} runs instead`)
    return own
  }
  fail(`${wished.from} asks for ${t.name} ${wished.want}, which the npm registry does not have`, `ask for one that it has; ${bypass}`)
}

// matches fails unless data has the digest of packageManager.
function matches (data, wished, t) {
  const digest = crypto.createHash(wished.algorithm).update(data).digest('hex')
  if (digest === wished.digest) return
  const short = hex => `${wished.algorithm}.${hex.slice(0, 12)}…`
  fail(`${wished.from} asks for ${t.name} ${wished.want} with another digest, ${short(wished.digest)}: the one that there is has ${short(digest)}`,
    `correct the digest in packageManager, or leave it out; ${bypass}`)
}

// isOwn reports whether the digest is the one with which the image's own version was installed.
function isOwn (t, version, wished) {
  try {
    const { packages } = JSON.parse(fs.readFileSync(path.join(home, 'package-lock.json'), 'utf8'))
    const own = packages[`node_modules/${t.list || t.package(version)}`]
    return wished.algorithm === 'sha512' && own.version === version && own.integrity === 'sha512-' + Buffer.from(wished.digest, 'hex').toString('base64')
  } catch {
    return false
  }
}

// verify compares a version of the registry with the digest of packageManager, as Corepack does: the package's archive or, of Yarn since 2, its
// only file, which dir has.
function verify (t, version, dir, wished) {
  if (!wished.digest) return
  const mark = path.join(store, 'pins', ['.checked', t.like || tool, version, wished.algorithm, wished.digest.slice(0, 64)].join('-'))
  if (fs.existsSync(mark) || isOwn(t, version, wished)) return
  const file = t.digested && t.digested(version)
  if (file) {
    matches(fs.readFileSync(path.join(dir, file)), wished, t)
  } else {
    inTemp(temp => {
      const done = npm(temp, 'pack', '--ignore-scripts', `${t.list || t.package(version)}@${version}`)
      if (!done.ok) unreachable(t, wished, done.said)
      matches(fs.readFileSync(path.join(temp, fs.readdirSync(temp).find(f => f.endsWith('.tgz')))), wished, t)
    })
  }
  fs.mkdirSync(path.dirname(mark), { recursive: true })
  fs.writeFileSync(mark, '')
}

// fetched puts the archive or the script at an address into a place of its own.
function fetched (t, wished, place) {
  const { want: url, from, digest } = wished
  const target = path.join(place, 'url-' + crypto.createHash('sha256').update(`${url}#${digest || ''}`).digest('hex').slice(0, 20))
  if (fs.existsSync(target)) return target
  say(`fetching ${t.name} from ${url}, which ${from} asks for`)
  inTemp(dir => {
    const file = path.join(dir, 'file')
    const to = path.join(dir, 'package')
    const run = (command, ...args) => {
      const done = spawnSync(command, args, { encoding: 'utf8' })
      if (done.status !== 0) fail(`${from} asks for ${t.name} from ${url}, which cannot be fetched: ${(done.stderr || String(done.error || '')).trim().slice(0, 300)}`, `correct the address, or let the sandbox reach it; ${bypass}`)
    }
    run('curl', '--fail', '--silent', '--show-error', '--location', '--proto-redir', '=https,http', '--output', file, '--', url)
    if (digest) matches(fs.readFileSync(file), wished, t)
    fs.mkdirSync(to)
    const kind = path.extname(new URL(url).pathname)
    if (['.js', '.cjs', '.mjs'].includes(kind)) {
      const mains = [].concat(t.main)
      const main = path.join(to, mains.find(m => m.endsWith(kind)) || mains.find(m => m.endsWith('js')))
      fs.mkdirSync(path.dirname(main), { recursive: true })
      fs.renameSync(file, main)
    } else {
      run('tar', '--extract', '--gzip', '--no-same-owner', '--strip-components=1', `--directory=${to}`, `--file=${file}`)
    }
    fs.mkdirSync(place, { recursive: true })
    fs.renameSync(to, target)
  })
  return target
}

// install puts a package into a place of its own, in one step, so that nobody sees half of it.
function install (t, version, place, wished) {
  const target = path.join(place, version)
  if (fs.existsSync(target)) {
    verify(t, version, target, wished)
    return target
  }
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
    verify(t, version, from, wished)
    fs.mkdirSync(place, { recursive: true })
    fs.renameSync(from, target)
  })
  return target
}

// get returns the path of a tool's program in the version that is wished for.
function get (name, wished) {
  const t = tools[name]
  const place = path.join(store, t.like || name)
  const version = wished && wished.url ? wished.want : choose(t, wished, place)
  if (version === t.own()) {
    verify(t, version, path.dirname(path.dirname(t.ownMain)), wished || {})
    return { main: t.ownMain, version }
  }
  const dir = wished.url ? fetched(t, wished, place) : install(t, version, place, wished)
  const main = [].concat(t.main).map(m => path.join(dir, m)).find(f => fs.existsSync(f))
  if (!main) fail(`${t.name} ${version} is not as expected: it has no ${[].concat(t.main)[0]}`, `remove ${dir}; ${bypass}`)
  return { main, version }
}

// manager returns what is wished for of a package manager. An npm goes with its node, unless the project says otherwise.
function manager (name, node) {
  const wished = wish(tools[name].like || name)
  if (name === 'bun') return wished && !wished.soft ? wished : { want: '*', from: 'the project', ...wished, soft: false }
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
