package lint

import (
	"slices"
	"strconv"
	"strings"
)

// row lists the packages of this module that a package may import. "x/..." matches x and all packages below it.
type row struct {
	pkg  string
	may  []string
	hint string // alternative to any other import
}

// above is allowed in every package but the two at the bottom.
var above = []string{"errors", "logf", "internal/pattern", "internal/fault", "internal/ids"}

// handlersHint is the hint for the packages of handlers.
const handlersHint = "handlers know one subject; server joins them"

// commandsHint is the hint for the packages of commands.
const commandsHint = "commands know one subject; package main joins them, and starts servers"

// rows are the layers of ARCHITECTURE.md, from the bottom to the top. The first matching row counts.
var rows = []row{
	{"errors", nil, "errors is at the bottom; what needs more belongs above it"},
	{"logf", nil, "logf is at the bottom; what needs more belongs above it"},

	{"internal/lint", nil, "the rules read files, not packages"},
	{"internal/testenv", nil,
		"helpers of all tests import no package of the module; put a helper that does beside its package"},
	{"internal/testrun", []string{"internal/testenv"}, "the runner of tests reads packages, it imports none"},
	{"internal/s3server/serve", []string{"internal/s3server"},
		"the process that serves S3 knows who starts it, and nothing else"},
	{"internal/s3server/s3test", []string{"internal/testenv"},
		"helpers of tests know the package that they are beside only"},
	{"internal/netguard", []string{"internal/iprange"},
		"the guard knows addresses and rules; its callers know accounts"},
	{"internal/s3server", []string{"internal/atomicfile"}, "the embedded S3 keeps its keys in a file"},
	{"internal/...", nil, "internal packages are plain helpers; pass what they need as parameters"},

	{"config", nil, "config knows values only; its callers convert them"},
	{"account", []string{"config"}, "accounts are plain; the server asks them who may do what"},
	{"account/oidc", []string{"account", "config", "internal/netguard"},
		"it identifies the caller, and the server decides the rights"},
	{"event", nil, "events are plain; the package that sends one fills it"},
	{"mcp", nil, "the description of MCP servers is plain; sessions and images write it down"},
	{"secret", []string{"config"}, "secrets are plain; sandbox and session decide who gets them"},
	{"git", nil, "git returns scripts; its callers run them in sandboxes"},
	{"github", []string{"config", "internal/..."}, "it knows GitHub's API only; session decides for whom"},
	{"model", []string{"config", "internal/netguard"}, "the gateway to models is plain: its callers pass credentials"},
	{"model/modeltest", nil, "the stub knows the API's protocol only"},
	{"model/tunnel", nil, "the tunnel carries requests and knows nothing of them"},
	{"gateway/...", []string{"gateway/...", "internal/..."}, "the gateway is plain: its callers pass the policy"},
	{"volume", []string{"internal/..."}, "volumes know nothing of engines"},
	{"memory", []string{"volume"}, "memory is files in volumes; session mounts them"},
	{"image", []string{"internal/..."},
		"the contract of images stands alone; it runs steps through a small interface of its own, never an engine"},
	{"image/agent", []string{"image/...", "mcp", "internal/..."},
		"images know nothing of engines; take a small Runner interface"},
	{"image/...", []string{"image/...", "internal/..."},
		"images know nothing of engines; take a small Runner interface"},

	{"s3/places", nil, "a place is a value; s3 knows how to reach it"},
	{"engine", []string{"image", "s3/places", "volume", "internal/tarfs"},
		"the contract of engines knows images, volumes and names of places only; policy belongs in sandbox"},
	{"engine/enginetest", []string{"engine", "image", "volume", "internal/..."},
		"the suite uses the contract only, so that every engine can run it"},
	{"engine/proc", []string{"engine", "internal/..."}, "it starts processes, and knows no engine"},
	{"engine/fake/...", []string{"engine", "engine/proc", "image/...", "volume/...", "internal/..."},
		"engines hold no policy and do not know one another"},
	{"engine/gvisor/...", []string{"engine", "engine/gvisor/...", "image/...", "volume/...", "gateway/...",
		"internal/..."}, "engines hold no policy and do not know one another"},
	{"engine/modal/...", []string{"engine", "engine/modal/...", "engine/gvisor/wire", "engine/proc", "image/...",
		"s3/places", "volume/...", "gateway", "internal/..."},
		"engines hold no policy and do not know one another, save how they speak to a keeper"},
	{"agent", []string{"engine", "mcp"}, "agents are pure: they make a command and decode lines"},
	{"agent/agenttest", []string{"agent"}, "helpers of tests know the contract of agents only"},
	{"agent/opencode/bridge", []string{"agent", "agent/opencode"},
		"it runs in a sandbox and knows its own agent only"},
	{"agent/scripted/program", []string{"agent", "agent/scripted"},
		"it runs in a sandbox and knows its own agent only"},
	{"agent/...", []string{"agent", "engine", "mcp"}, "agents are pure: they make a command and decode lines"},

	{"s3/tree", nil, "a tree is files of one machine; its callers know buckets"},
	{"s3", []string{"s3/tree", "internal/netguard"}, "s3 says how to reach a place; the packages below it work there"},
	{"s3/buffer", nil, "buffers are memory; their users know objects"},
	{"s3/manifest", []string{"s3/tree"}, "a manifest is a file of entries; its readers know where it is"},
	{"s3/object/wire", []string{"internal/netguard"}, "it sends requests; s3/object knows what they mean"},
	{"s3/object", []string{"s3", "s3/buffer", "s3/manifest", "s3/object/wire", "s3/tree", "internal/netguard",
		"internal/socket"}, "the client of a bucket knows single objects; syncs are above it"},
	{"s3/sync/plan", []string{"s3/manifest", "s3/tree"}, "a plan is pure: pass what it needs as parameters"},
	{"s3/sync/state", []string{"s3/manifest", "s3/object", "s3/sync/plan", "s3/tree", "internal/atomicfile"},
		"the state is this machine's records; s3/sync decides when to write them"},
	{"s3/sync/remote", []string{"s3/buffer", "s3/manifest", "s3/object", "s3/sync/state", "s3/tree"},
		"it reads a bucket's entries; s3/sync decides about them"},
	{"s3/sync/pack", []string{"s3/buffer", "s3/manifest", "s3/object", "s3/sync/plan", "s3/sync/state", "s3/tree"},
		"packs are copies of small files; s3/sync decides when to make and use them"},
	{"s3/sync", []string{"s3/buffer", "s3/manifest", "s3/object", "s3/sync/...", "s3/tree"},
		"a sync knows a tree and a bucket; storage knows volumes"},
	{"s3/mount", []string{"s3", "s3/object", "s3/places", "s3/tree", "internal/..."},
		"a mount serves files of a bucket; its callers know sandboxes"},
	{"storage", []string{"s3", "s3/object", "s3/places", "s3/sync", "s3/sync/plan", "s3/tree", "secret", "volume",
		"internal/..."},
		"storage joins volumes and buckets; its callers know the rest"},
	{"sandbox/usage", []string{"engine"}, "it measures; sandbox knows when a sandbox runs"},
	{"sandbox/spec", []string{"account", "engine", "gateway", "image", "s3/places", "secret", "volume"},
		"a request is checked without a Fleet: pass abilities as Rules"},
	{"sandbox/record", []string{"engine", "event", "sandbox/spec", "sandbox/usage"},
		"records are values; sandbox changes them and store keeps them"},
	{"sandbox/reserve", []string{"sandbox/spec"}, "it compares numbers; sandbox knows who has which sandboxes"},
	{"sandbox/carry", []string{"engine"}, "it says when; sandbox carries over"},
	{"sandbox/leftover", []string{"engine"}, "it destroys sandboxes; sandbox knows which must end"},
	{"sandbox/commands", []string{"engine", "sandbox/record"},
		"it knows one sandbox through functions; sandbox has all"},
	{"sandbox/denials", []string{"engine", "gateway", "sandbox/record"},
		"it knows one sandbox through functions; sandbox has all"},
	{"sandbox/transfer", []string{"engine", "sandbox/record", "sandbox/spec", "storage"},
		"it knows the files of one sandbox; take an interface for S3, and let app name the implementation"},
	{"sandbox/images", []string{"account", "engine", "image", "sandbox/record", "sandbox/spec", "secret"},
		"it asks the engine for images; sandbox knows which are in use"},
	{"sandbox/checkpoint", []string{"internal/atomicfile", "sandbox/record", "sandbox/spec", "secret"},
		"it keeps directories; sandbox asks the engine"},
	{"sandbox/boots", nil, "it counts and waits; sandbox boots"},
	{"sandbox/pool", []string{"account", "engine", "image", "sandbox/boots", "sandbox/record", "sandbox/spec"},
		"it boots and keeps; sandbox takes"},
	{"sandbox/python", []string{"sandbox", "sandbox/commands", "sandbox/spec"}, "it uses a Fleet as any client does"},
	{"sandbox/refresh", []string{"image", "sandbox", "sandbox/python", "sandbox/spec", "volume"},
		"it uses a Fleet as any client does"},
	{"sandbox/build", []string{"account", "image/dockerfile", "sandbox", "sandbox/record", "sandbox/spec", "volume"},
		"it uses a Fleet as any client does"},
	{"sandbox/sandboxtest", []string{"engine", "engine/fake", "sandbox", "store/testdb"},
		"helpers of tests know Fleets and the fake engine only"},
	{"sandbox", []string{"account", "engine", "image", "volume", "secret", "internal/...",
		"sandbox/boots", "sandbox/carry", "sandbox/checkpoint", "sandbox/commands", "sandbox/denials", "sandbox/images",
		"sandbox/leftover", "sandbox/pool", "sandbox/record", "sandbox/reserve", "sandbox/spec", "sandbox/transfer",
		"sandbox/usage"},
		"sandbox uses contracts; take an interface for upper layers, and let app name the concrete engine"},
	{"session/shell", []string{"sandbox", "sandbox/commands"}, "it runs any script; its callers know their meaning"},
	{"session/pipe", []string{"engine", "sandbox", "sandbox/commands", "session/shell"},
		"lines and bytes; session knows their meaning"},
	{"session/credentials", []string{"session/shell", "config", "git", "github", "secret"},
		"credentials of git; session decides when to fetch them"},
	{"session/workspace", []string{"sandbox", "sandbox/commands", "git", "session/credentials",
		"session/pipe", "session/shell"},
		"it works in the sandbox; session decides when"},
	{"session/text", nil, "texts only"},
	{"session/pulls", []string{"git", "github", "session/text", "session/workspace"},
		"it knows GitHub and the text; session pushes the work and asks the agent"},
	{"session/models", []string{"agent", "engine", "model", "model/tunnel", "sandbox", "session/shell"},
		"it connects any sandbox; session knows which agent needs it"},
	{"session/servers", []string{"agent", "mcp", "sandbox", "secret", "session/shell"},
		"it knows servers and the agent's reports; session sends the agent's input"},
	{"session/volumes", []string{"account", "git", "mcp", "memory", "session/shell", "session/workspace", "volume",
		"sandbox/spec"},
		"it knows files; session knows when they change"},
	{"session/spares", nil, "it counts and waits; session makes and takes"},
	{"session/once", []string{"agent", "engine", "model", "sandbox", "sandbox/commands", "sandbox/record",
		"session/models", "session/pipe", "session/shell"},
		"it knows no session"},
	{"session/preparation", []string{"image", "sandbox", "sandbox/record", "sandbox/spec", "session/credentials",
		"session/models", "session/records", "session/shell", "session/volumes", "session/workspace", "volume"},
		"it does the steps; session starts and reports them"},
	{"session/records", []string{"agent", "event", "git", "session/workspace", "sandbox/record", "sandbox/spec"},
		"records are values; session changes them and store keeps them"},
	{"session/questions", []string{"agent"}, "it is pure; session asks and answers"},
	{"session/past", []string{"agent", "session/records", "session/shell", "session/volumes"},
		"it reads the conversation; session sends prompts"},
	{"session", []string{"session/...", "sandbox", "sandbox/commands", "sandbox/record", "sandbox/spec", "git",
		"github",
		"mcp", "agent", "model", "volume", "event", "secret"},
		"session uses contracts; let cmd/harvest name the concrete agents"},
	{"repo", []string{"account", "sandbox", "sandbox/commands", "sandbox/record", "sandbox/spec", "image",
		"event", "git"},
		"repo builds images through sandbox"},
	{"schedule", []string{"event"}, "schedule runs functions that it is given"},
	{"modalapi/dicts", nil, "Dicts are records; modalapi knows the protocol"},
	{"modalapi/records", nil, "records are bytes; the packages that make them know their meaning"},
	{"store/testdb", []string{"store"}, "helpers of tests know the database only"},
	{"store/...", []string{"account", "agent", "modalapi/dicts", "modalapi/records", "session/records",
		"session/workspace", "repo", "schedule", "secret", "storage", "event", "engine", "internal/...",
		"sandbox/record", "sandbox/spec", "sandbox/usage"},
		"the store implements small interfaces of the packages whose records it keeps"},

	{"api", nil, "the wire format is plain; server and client convert"},
	{"client", []string{"api", "internal/..."},
		"the client knows the wire format only, so that programs can import it alone"},
	{"web", nil, "the UI is files; the server serves them"},
	{"server/edge", []string{"account", "api"}, "the base of handlers knows no subject; pass values to it"},
	{"server/openapi", []string{"api", "server/edge"}, "the description is made from routes alone"},
	{"server/files", []string{"account", "api", "sandbox", "server/edge", "internal/tarfs"}, handlersHint},
	{"server/images", []string{"account", "api", "image", "sandbox", "secret", "server/edge"}, handlersHint},
	{"server/repos", []string{"account", "api", "repo", "server/edge", "sandbox/spec"},
		handlersHint},
	{"server/sandboxes", []string{"account", "api", "engine", "image", "sandbox", "sandbox/commands", "sandbox/python",
		"sandbox/record",
		"sandbox/spec", "sandbox/usage", "server/edge", "server/images"},
		handlersHint},
	{"server/schedules", []string{"account", "api", "schedule", "server/edge"}, handlersHint},
	{"server/secrets", []string{"account", "api", "secret", "server/edge"}, handlersHint},
	{"server/sessions", []string{"account", "agent", "api", "git", "memory", "server/edge", "session",
		"session/pulls", "session/records", "session/workspace", "volume", "sandbox/spec"},
		handlersHint},
	{"server/volumes", []string{"account", "api", "s3/object", "s3/places", "s3/sync", "s3/sync/plan", "sandbox",
		"server/edge", "storage", "volume"}, handlersHint},
	{"server", []string{"account", "account/oidc", "agent", "api", "config", "event", "image", "repo", "s3/places",
		"sandbox", "sandbox/record", "sandbox/spec", "schedule", "secret", "server/...", "session", "storage",
		"volume", "web", "internal/..."},
		"the server uses contracts; let cmd/harvest name the concrete engine"},
	{"modalapi/modaltest", nil, "helpers of tests know Modal's protocol only"},
	{"modalapi/...", []string{"modalapi/...", "account", "s3/places", "sandbox", "sandbox/checkpoint",
		"sandbox/commands", "sandbox/record", "sandbox/spec", "secret", "engine", "image", "volume", "internal/..."},
		"modalapi is a second face of the core beside server"},

	{"cmd/harvest/chat", []string{"api", "client"},
		"a conversation knows the wire format; the command line gives it what concerns git"},
	{"cmd/harvest/cli", []string{"api", "client", "config", "secret", "internal/release", "internal/tarfs"},
		"the base of commands knows no subject; pass values to it"},
	{"cmd/harvest/worktree", []string{"api", "cmd/harvest/chat", "git", "internal/atomicfile"},
		"it knows git and files; cmd/harvest/agents asks the server"},
	{"cmd/harvest/agents", []string{"api", "client", "cmd/harvest/chat", "cmd/harvest/cli", "cmd/harvest/worktree"},
		commandsHint},
	{"cmd/harvest/files", []string{"api", "client", "cmd/harvest/cli", "internal/tarfs"}, commandsHint},
	{"cmd/harvest/images", []string{"api", "client", "cmd/harvest/chat", "cmd/harvest/cli", "internal/tarfs"},
		commandsHint},
	{"cmd/harvest/sandboxes", []string{"api", "client", "cmd/harvest/cli", "cmd/harvest/files", "cmd/harvest/images",
		"internal/bytestream"}, commandsHint},
	{"cmd/harvest/repos", []string{"api", "client", "cmd/harvest/chat", "cmd/harvest/cli"}, commandsHint},
	{"cmd/harvest/schedules", []string{"api", "client", "cmd/harvest/cli"}, commandsHint},
	{"cmd/harvest/secrets", []string{"api", "client", "cmd/harvest/cli", "secret"}, commandsHint},
	{"app/startup", []string{"api"}, "the command and the server that it starts share these few names"},
	{"app", []string{"..."}, "app connects all parts; only commands import it"},
	{"cmd/harvest/...", []string{"..."}, ""},
	{"bench/...", []string{"..."}, ""},
	{"e2e/...", []string{"..."}, "whole-run tests drive the built binary"},
}

// fits reports whether pkg matches pattern.
func fits(pattern, pkg string) bool {
	if stem, ok := strings.CutSuffix(pattern, "..."); ok {
		return stem == "" || pkg == strings.TrimSuffix(stem, "/") || strings.HasPrefix(pkg, stem)
	}
	return pattern == pkg
}

// layers checks the imports between packages of this module. Tests may import what their package may, and anything but
// commands.
func layers(t *tree) []Finding {
	var all []Finding
	for _, f := range t.files {
		i := slices.IndexFunc(rows, func(r row) bool { return fits(r.pkg, f.dir()) })
		if i < 0 {
			all = append(all, Finding{f.path, 0, "layers", "package " + f.dir() + " has no row",
				"add one to internal/lint/layers.go and the picture in ARCHITECTURE.md"})
			continue
		}
		for _, spec := range f.ast.Imports {
			target, _ := strconv.Unquote(spec.Path.Value)
			dep, ours := strings.CutPrefix(target, modulePath+"/")
			if !ours || dep == f.dir() || allowed(rows[i], f, dep) {
				continue
			}
			hint := rows[i].hint
			if helper(dep) {
				hint = "import it in tests only"
			}
			all = append(all, Finding{f.path, f.line(spec), "layers", f.dir() + " may not import " + dep, hint})
		}
	}
	return all
}

// helpers are the packages that help tests of other packages.
var helpers = []string{"agent/agenttest", "engine/enginetest", "image/imagetest", "internal/s3server/s3test",
	"internal/testenv", "modalapi/modaltest", "model/modeltest", "sandbox/sandboxtest", "store/storetest",
	"store/testdb"}

// helper reports whether pkg exists for tests.
func helper(pkg string) bool {
	return fits("e2e/...", pkg) || pkg == "internal/testrun" || pkg == "internal/lint" || slices.Contains(helpers, pkg)
}

// allowed reports whether f, of a package with row r, may import dep.
func allowed(r row, f *file, dep string) bool {
	switch {
	case f.isTest():
		return !fits("cmd/...", dep) || slices.ContainsFunc(r.may, func(p string) bool { return fits(p, dep) })
	case helper(dep) && !helper(f.dir()):
		return fits(r.pkg, "bench")
	case r.pkg == "errors" || r.pkg == "logf":
		return false
	}
	return slices.Contains(above, dep) || slices.ContainsFunc(r.may, func(p string) bool { return fits(p, dep) })
}

// others lists where a third-party library or a standard package may be imported. Tests are exempt.
var others = []struct {
	path string // "x/..." matches x and all packages below it
	in   []string
	hint string
}{
	{"gvisor.dev/...", []string{"engine/gvisor/...", "gateway/netstack", "bench/runsc"},
		"ask the engine through its contract"},
	{"github.com/spf13/...", []string{"cmd/harvest/..."}, "only the command line has commands and flags"},
	{"github.com/hanwen/go-fuse/...", []string{"s3/mount"}, "s3/mount alone serves file systems"},
	{"modernc.org/...", []string{"store/..."}, "declare a small Store interface and implement it in store"},
	{"github.com/goccy/go-yaml/...", []string{"config", "cmd/harvest/..."},
		"add a row to the options of package config"},
	{"github.com/charmbracelet/...", []string{"cmd/harvest/chat"}, "only the conversation draws on terminals"},
	{"github.com/yuin/goldmark/...", []string{"cmd/harvest/chat"}, "only the conversation renders Markdown"},
	{"github.com/schollz/progressbar/...", []string{"cmd/harvest/cli"},
		"report progress to a function; the command line draws it"},
	{"testing/...", slices.Concat(helpers, []string{"bench/...", "e2e/..."}), "move it to a _test.go file"},
	{"errors", []string{"errors"}, "import " + modulePath + "/errors"},
	{"log", []string{"e2e/modalhost"}, "write logf.Infof(ctx, …)"},
	{"log/slog", []string{"logf", "config"}, "write logf.Infof(ctx, …), and logf.With(ctx, …) for attributes"},
	{"os/exec", []string{"agent/opencode/bridge", "agent/scripted/program", "engine/...", "image/...", "s3/mount",
		"internal/s3server", "internal/testenv", "internal/testrun", "internal/s3server/s3test",
		"internal/peers/release", "app", "cmd/harvest/...", "bench/...", "e2e/..."},
		"only engines, mounts of S3 and its embedded server, image builders and the command line start programs"},
	{"io/ioutil", nil, "use io and os"},
	{"math/rand", nil, "use crypto/rand, or math/rand/v2 where guessing gains nothing"},
}

// foreign checks the imports of third-party and standard packages.
func foreign(t *tree) []Finding {
	var all []Finding
	for _, f := range t.files {
		if f.isTest() {
			continue
		}
		for _, spec := range f.ast.Imports {
			target, _ := strconv.Unquote(spec.Path.Value)
			for _, o := range others {
				if fits(o.path, target) && !slices.ContainsFunc(o.in, func(p string) bool { return fits(p, f.dir()) }) {
					all = append(all, Finding{f.path, f.line(spec), "imports",
						f.dir() + " may not import " + target, o.hint})
				}
			}
		}
	}
	return all
}
