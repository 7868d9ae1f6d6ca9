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
var above = []string{"errors", "logf", "internal/base/pattern", "internal/base/fault", "internal/base/ids"}

// handlersHint is the hint for the packages of handlers.
const handlersHint = "handlers know one subject; server joins them"

// commandsHint is the hint for the packages of commands.
const commandsHint = "commands know one subject; package main joins them, and starts servers"

// rows are the layers of ARCHITECTURE.md, from the bottom to the top. The first matching row counts.
var rows = []row{
	{"errors", nil, "errors is at the bottom; what needs more belongs above it"},
	{"logf", nil, "logf is at the bottom; what needs more belongs above it"},

	{"tools/lint", nil, "the rules read files, not packages"},
	{"internal/base/testenv", nil,
		"helpers of all tests import no package of the module; put a helper that does beside its package"},
	{"tools/testrun", []string{"internal/base/testenv"}, "the runner of tests reads packages, it imports none"},
	{"internal/s3/embedded/serve", []string{"internal/s3/embedded"},
		"the process that serves S3 knows who starts it, and nothing else"},
	{"test/stubs/s3test", []string{"internal/base/testenv"},
		"helpers of tests know the package that they are beside only"},
	{"internal/base/netguard", []string{"internal/base/iprange"},
		"the guard knows addresses and rules; its callers know accounts"},
	{"internal/s3/embedded", []string{"internal/base/atomicfile"}, "the embedded S3 keeps its keys in a file"},
	{"internal/...", nil, "internal packages are plain helpers; pass what they need as parameters"},

	{"config", nil, "config knows values only; its callers convert them"},
	{"account", []string{"config"}, "accounts are plain; the server asks them who may do what"},
	{"internal/base/account/oidc", []string{"account", "config", "internal/base/netguard"},
		"it identifies the caller, and the server decides the rights"},
	{"event", nil, "events are plain; the package that sends one fills it"},
	{"mcp", nil, "the description of MCP servers is plain; sessions and images write it down"},
	{"secret", []string{"config"}, "secrets are plain; sandbox and session decide who gets them"},
	{"git", nil, "git returns scripts; its callers run them in sandboxes"},
	{"github", []string{"config", "internal/..."}, "it knows GitHub's API only; session decides for whom"},
	{"model", []string{"config", "internal/base/netguard"}, "the gateway to models is plain: its callers pass credentials"},
	{"test/stubs/modeltest", nil, "the stub knows the API's protocol only"},
	{"internal/session/model/tunnel", nil, "the tunnel carries requests and knows nothing of them"},
	{"gateway/...", []string{"gateway/...", "internal/..."}, "the gateway is plain: its callers pass the policy"},
	{"volume", []string{"internal/..."}, "volumes know nothing of engines"},
	{"memory", []string{"volume"}, "memory is files in volumes; session mounts them"},
	{"image", []string{"internal/..."},
		"the contract of images stands alone; it runs steps through a small interface of its own, never an engine"},
	{"internal/image/agent", []string{"image/...", "mcp", "internal/..."},
		"images know nothing of engines; take a small Runner interface"},
	{"image/...", []string{"image/...", "internal/..."},
		"images know nothing of engines; take a small Runner interface"},

	{"internal/base/places", nil, "a place is a value; s3 knows how to reach it"},
	{"engine", []string{"image", "internal/base/places", "volume", "internal/base/tarfs"},
		"the contract of engines knows images, volumes and names of places only; policy belongs in sandbox"},
	{"internal/engine/enginetest", []string{"engine", "image", "volume", "internal/..."},
		"the suite uses the contract only, so that every engine can run it"},
	{"internal/engine/proc", []string{"engine", "internal/..."}, "it starts processes, and knows no engine"},
	{"internal/engine/fake/...", []string{"engine", "internal/engine/proc", "image/...", "volume/...", "internal/..."},
		"engines hold no policy and do not know one another"},
	{"internal/engine/gvisor/...", []string{"engine", "internal/engine/gvisor/...", "image/...", "volume/...", "gateway/...",
		"internal/..."}, "engines hold no policy and do not know one another"},
	{"internal/engine/modal/...", []string{"engine", "internal/engine/modal/...", "internal/engine/gvisor/wire", "internal/engine/proc", "image/...",
		"internal/base/places", "volume/...", "gateway", "internal/..."},
		"engines hold no policy and do not know one another, save how they speak to a keeper"},
	{"agent", []string{"engine", "mcp"}, "agents are pure: they make a command and decode lines"},
	{"internal/session/agent/agenttest", []string{"agent"}, "helpers of tests know the contract of agents only"},
	{"internal/session/agent/opencode/bridge", []string{"agent", "internal/session/agent/opencode"},
		"it runs in a sandbox and knows its own agent only"},
	{"internal/session/agent/scripted/program", []string{"agent", "internal/session/agent/scripted"},
		"it runs in a sandbox and knows its own agent only"},
	{"agent/...", []string{"agent", "engine", "mcp"}, "agents are pure: they make a command and decode lines"},

	{"internal/s3/tree", nil, "a tree is files of one machine; its callers know buckets"},
	{"s3", []string{"internal/s3/tree", "internal/base/netguard"}, "s3 says how to reach a place; the packages below it work there"},
	{"internal/s3/buffer", nil, "buffers are memory; their users know objects"},
	{"internal/s3/manifest", []string{"internal/s3/tree"}, "a manifest is a file of entries; its readers know where it is"},
	{"internal/s3/object/wire", []string{"internal/base/netguard"}, "it sends requests; internal/s3/object knows what they mean"},
	{"internal/s3/object", []string{"s3", "internal/s3/buffer", "internal/s3/manifest", "internal/s3/object/wire", "internal/s3/tree", "internal/base/netguard",
		"client/transport/socket"}, "the client of a bucket knows single objects; syncs are above it"},
	{"internal/s3/volsync/plan", []string{"internal/s3/manifest", "internal/s3/tree"}, "a plan is pure: pass what it needs as parameters"},
	{"internal/s3/volsync/state", []string{"internal/s3/manifest", "internal/s3/object", "internal/s3/volsync/plan", "internal/s3/tree", "internal/base/atomicfile"},
		"the state is this machine's records; internal/s3/volsync decides when to write them"},
	{"internal/s3/volsync/remote", []string{"internal/s3/buffer", "internal/s3/manifest", "internal/s3/object", "internal/s3/volsync/state", "internal/s3/tree"},
		"it reads a bucket's entries; internal/s3/volsync decides about them"},
	{"internal/s3/volsync/pack", []string{"internal/s3/buffer", "internal/s3/manifest", "internal/s3/object", "internal/s3/volsync/plan", "internal/s3/volsync/state", "internal/s3/tree"},
		"packs are copies of small files; internal/s3/volsync decides when to make and use them"},
	{"internal/s3/volsync", []string{"internal/s3/buffer", "internal/s3/manifest", "internal/s3/object", "internal/s3/volsync/...", "internal/s3/tree"},
		"a sync knows a tree and a bucket; storage knows volumes"},
	{"internal/s3/mount", []string{"s3", "internal/s3/object", "internal/base/places", "internal/s3/tree", "internal/..."},
		"a mount serves files of a bucket; its callers know sandboxes"},
	{"storage", []string{"s3", "internal/s3/object", "internal/base/places", "internal/s3/volsync", "internal/s3/volsync/plan", "internal/s3/tree", "secret", "volume",
		"internal/..."},
		"storage joins volumes and buckets; its callers know the rest"},
	{"internal/fleet/usage", []string{"engine"}, "it measures; sandbox knows when a sandbox runs"},
	{"internal/fleet/spec", []string{"account", "engine", "gateway", "image", "internal/base/places", "secret", "volume"},
		"a request is checked without a Fleet: pass abilities as Rules"},
	{"internal/fleet/record", []string{"engine", "event", "internal/fleet/spec", "internal/fleet/usage"},
		"records are values; sandbox changes them and store keeps them"},
	{"internal/fleet/reserve", []string{"internal/fleet/spec"}, "it compares numbers; sandbox knows who has which sandboxes"},
	{"internal/fleet/carry", []string{"engine"}, "it says when; sandbox carries over"},
	{"internal/fleet/leftover", []string{"engine"}, "it destroys sandboxes; sandbox knows which must end"},
	{"internal/fleet/commands", []string{"engine", "internal/fleet/record"},
		"it knows one sandbox through functions; sandbox has all"},
	{"internal/fleet/denials", []string{"engine", "gateway", "internal/fleet/record"},
		"it knows one sandbox through functions; sandbox has all"},
	{"internal/fleet/transfer", []string{"engine", "internal/fleet/record", "internal/fleet/spec", "storage"},
		"it knows the files of one sandbox; take an interface for S3, and let app name the implementation"},
	{"internal/fleet/images", []string{"account", "engine", "image", "internal/fleet/record", "internal/fleet/spec", "secret"},
		"it asks the engine for images; sandbox knows which are in use"},
	{"internal/fleet/checkpoint", []string{"internal/base/atomicfile", "internal/fleet/record", "internal/fleet/spec", "secret"},
		"it keeps directories; sandbox asks the engine"},
	{"internal/fleet/boots", nil, "it counts and waits; sandbox boots"},
	{"internal/fleet/pool", []string{"account", "engine", "image", "internal/fleet/boots", "internal/fleet/record", "internal/fleet/spec"},
		"it boots and keeps; sandbox takes"},
	{"internal/fleet/python", []string{"sandbox", "internal/fleet/commands", "internal/fleet/spec"}, "it uses a Fleet as any client does"},
	{"internal/fleet/refresh", []string{"image", "sandbox", "internal/fleet/python", "internal/fleet/spec", "volume"},
		"it uses a Fleet as any client does"},
	{"internal/fleet/build", []string{"account", "internal/image/dockerfile", "sandbox", "internal/fleet/record", "internal/fleet/spec", "volume"},
		"it uses a Fleet as any client does"},
	{"test/stubs/sandboxtest", []string{"engine", "internal/engine/fake", "sandbox", "internal/store/testdb"},
		"helpers of tests know Fleets and the fake engine only"},
	{"sandbox", []string{"account", "engine", "image", "volume", "secret", "internal/...",
		"internal/fleet/boots", "internal/fleet/carry", "internal/fleet/checkpoint", "internal/fleet/commands", "internal/fleet/denials", "internal/fleet/images",
		"internal/fleet/leftover", "internal/fleet/pool", "internal/fleet/record", "internal/fleet/reserve", "internal/fleet/spec", "internal/fleet/transfer",
		"internal/fleet/usage"},
		"sandbox uses contracts; take an interface for upper layers, and let app name the concrete engine"},
	{"internal/session/shell", []string{"sandbox", "internal/fleet/commands"}, "it runs any script; its callers know their meaning"},
	{"internal/session/pipe", []string{"engine", "sandbox", "internal/fleet/commands", "internal/session/shell"},
		"lines and bytes; session knows their meaning"},
	{"internal/session/credentials", []string{"internal/session/shell", "config", "git", "github", "secret"},
		"credentials of git; session decides when to fetch them"},
	{"internal/session/workspace", []string{"sandbox", "internal/fleet/commands", "git", "internal/session/credentials",
		"internal/session/pipe", "internal/session/shell"},
		"it works in the sandbox; session decides when"},
	{"internal/session/text", nil, "texts only"},
	{"internal/session/pulls", []string{"git", "github", "internal/session/text", "internal/session/workspace"},
		"it knows GitHub and the text; session pushes the work and asks the agent"},
	{"internal/session/models", []string{"agent", "engine", "model", "internal/session/model/tunnel", "sandbox", "internal/session/shell"},
		"it connects any sandbox; session knows which agent needs it"},
	{"internal/session/servers", []string{"agent", "mcp", "sandbox", "secret", "internal/session/shell"},
		"it knows servers and the agent's reports; session sends the agent's input"},
	{"internal/session/volumes", []string{"account", "git", "mcp", "memory", "internal/session/shell", "internal/session/workspace", "volume",
		"internal/fleet/spec"},
		"it knows files; session knows when they change"},
	{"internal/session/spares", nil, "it counts and waits; session makes and takes"},
	{"internal/session/once", []string{"agent", "engine", "model", "sandbox", "internal/fleet/commands", "internal/fleet/record",
		"internal/session/models", "internal/session/pipe", "internal/session/shell"},
		"it knows no session"},
	{"internal/session/preparation", []string{"image", "sandbox", "internal/fleet/record", "internal/fleet/spec", "internal/session/credentials",
		"internal/session/models", "internal/session/records", "internal/session/shell", "internal/session/volumes", "internal/session/workspace", "volume"},
		"it does the steps; session starts and reports them"},
	{"internal/session/records", []string{"agent", "event", "git", "internal/session/workspace", "internal/fleet/record", "internal/fleet/spec"},
		"records are values; session changes them and store keeps them"},
	{"internal/session/questions", []string{"agent"}, "it is pure; session asks and answers"},
	{"internal/session/past", []string{"agent", "internal/session/records", "internal/session/shell", "internal/session/volumes"},
		"it reads the conversation; session sends prompts"},
	{"session", []string{"session/...", "sandbox", "internal/fleet/commands", "internal/fleet/record", "internal/fleet/spec", "git",
		"github",
		"mcp", "agent", "model", "volume", "event", "secret"},
		"session uses contracts; let cmd/harvest name the concrete agents"},
	{"repo", []string{"account", "sandbox", "internal/fleet/commands", "internal/fleet/record", "internal/fleet/spec", "image",
		"event", "git"},
		"repo builds images through sandbox"},
	{"schedule", []string{"event"}, "schedule runs functions that it is given"},
	{"internal/store/dicts", nil, "Dicts are records; modalapi knows the protocol"},
	{"internal/store/records", nil, "records are bytes; the packages that make them know their meaning"},
	{"internal/store/testdb", []string{"store"}, "helpers of tests know the database only"},
	{"store/...", []string{"account", "agent", "internal/store/dicts", "internal/store/records", "internal/session/records",
		"internal/session/workspace", "repo", "schedule", "secret", "storage", "event", "engine", "internal/...",
		"internal/fleet/record", "internal/fleet/spec", "internal/fleet/usage"},
		"the store implements small interfaces of the packages whose records it keeps"},

	{"api", nil, "the wire format is plain; server and client convert"},
	{"client", []string{"api", "internal/..."},
		"the client knows the wire format only, so that programs can import it alone"},
	{"web", nil, "the UI is files; the server serves them"},
	{"internal/server/edge", []string{"account", "api"}, "the base of handlers knows no subject; pass values to it"},
	{"internal/server/openapi", []string{"api", "internal/server/edge"}, "the description is made from routes alone"},
	{"internal/server/files", []string{"account", "api", "sandbox", "internal/server/edge", "internal/base/tarfs"}, handlersHint},
	{"internal/server/images", []string{"account", "api", "image", "sandbox", "secret", "internal/server/edge"}, handlersHint},
	{"internal/server/repos", []string{"account", "api", "repo", "internal/server/edge", "internal/fleet/spec"},
		handlersHint},
	{"internal/server/sandboxes", []string{"account", "api", "engine", "image", "sandbox", "internal/fleet/commands", "internal/fleet/python",
		"internal/fleet/record",
		"internal/fleet/spec", "internal/fleet/usage", "internal/server/edge", "internal/server/images"},
		handlersHint},
	{"internal/server/schedules", []string{"account", "api", "schedule", "internal/server/edge"}, handlersHint},
	{"internal/server/secrets", []string{"account", "api", "secret", "internal/server/edge"}, handlersHint},
	{"internal/server/sessions", []string{"account", "agent", "api", "git", "memory", "internal/server/edge", "session",
		"internal/session/pulls", "internal/session/records", "internal/session/workspace", "volume", "internal/fleet/spec"},
		handlersHint},
	{"internal/server/volumes", []string{"account", "api", "internal/s3/object", "internal/base/places", "internal/s3/volsync", "internal/s3/volsync/plan", "sandbox",
		"internal/server/edge", "storage", "volume"}, handlersHint},
	{"server", []string{"account", "internal/base/account/oidc", "agent", "api", "config", "event", "image", "repo", "internal/base/places",
		"sandbox", "internal/fleet/record", "internal/fleet/spec", "schedule", "secret", "server/...", "session", "storage",
		"volume", "web", "internal/..."},
		"the server uses contracts; let cmd/harvest name the concrete engine"},
	{"test/stubs/modaltest", nil, "helpers of tests know Modal's protocol only"},
	{"modalapi/...", []string{"modalapi/...", "account", "internal/base/places", "sandbox", "internal/fleet/checkpoint",
		"internal/fleet/commands", "internal/fleet/record", "internal/fleet/spec", "secret", "engine", "image", "volume", "internal/..."},
		"modalapi is a second face of the core beside server"},

	{"internal/cli/chat", []string{"api", "client"},
		"a conversation knows the wire format; the command line gives it what concerns git"},
	{"internal/cli", []string{"api", "client", "config", "secret", "internal/base/release", "internal/base/tarfs"},
		"the base of commands knows no subject; pass values to it"},
	{"internal/cli/worktree", []string{"api", "internal/cli/chat", "git", "internal/base/atomicfile"},
		"it knows git and files; internal/cli/agents asks the server"},
	{"internal/cli/agents", []string{"api", "client", "internal/cli/chat", "internal/cli", "internal/cli/worktree"},
		commandsHint},
	{"internal/cli/files", []string{"api", "client", "internal/cli", "internal/base/tarfs"}, commandsHint},
	{"internal/cli/images", []string{"api", "client", "internal/cli/chat", "internal/cli", "internal/base/tarfs"},
		commandsHint},
	{"internal/cli/sandboxes", []string{"api", "client", "internal/cli", "internal/cli/files", "internal/cli/images",
		"client/transport/bytestream"}, commandsHint},
	{"internal/cli/repos", []string{"api", "client", "internal/cli/chat", "internal/cli"}, commandsHint},
	{"internal/cli/schedules", []string{"api", "client", "internal/cli"}, commandsHint},
	{"internal/cli/secrets", []string{"api", "client", "internal/cli", "secret"}, commandsHint},
	{"internal/app/startup", []string{"api"}, "the command and the server that it starts share these few names"},
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
				"add one to tools/lint/layers.go and the picture in ARCHITECTURE.md"})
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
var helpers = []string{"internal/session/agent/agenttest", "internal/engine/enginetest", "internal/image/imagetest", "test/stubs/s3test",
	"internal/base/testenv", "test/stubs/modaltest", "test/stubs/modeltest", "test/stubs/sandboxtest", "internal/store/storetest",
	"internal/store/testdb"}

// helper reports whether pkg exists for tests.
func helper(pkg string) bool {
	return fits("e2e/...", pkg) || pkg == "tools/testrun" || pkg == "tools/lint" || slices.Contains(helpers, pkg)
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
	{"gvisor.dev/...", []string{"internal/engine/gvisor/...", "internal/engine/gateway/netstack", "tools/bench/runsc"},
		"ask the engine through its contract"},
	{"github.com/spf13/...", []string{"cmd/harvest/..."}, "only the command line has commands and flags"},
	{"github.com/hanwen/go-fuse/...", []string{"internal/s3/mount"}, "internal/s3/mount alone serves file systems"},
	{"modernc.org/...", []string{"store/..."}, "declare a small Store interface and implement it in store"},
	{"github.com/goccy/go-yaml/...", []string{"config", "cmd/harvest/..."},
		"add a row to the options of package config"},
	{"github.com/charmbracelet/...", []string{"internal/cli/chat"}, "only the conversation draws on terminals"},
	{"github.com/yuin/goldmark/...", []string{"internal/cli/chat"}, "only the conversation renders Markdown"},
	{"github.com/schollz/progressbar/...", []string{"internal/cli"},
		"report progress to a function; the command line draws it"},
	{"testing/...", slices.Concat(helpers, []string{"bench/...", "e2e/..."}), "move it to a _test.go file"},
	{"errors", []string{"errors"}, "import " + modulePath + "/errors"},
	{"log", []string{"test/host/modalhost"}, "write logf.Infof(ctx, …)"},
	{"log/slog", []string{"logf", "config"}, "write logf.Infof(ctx, …), and logf.With(ctx, …) for attributes"},
	{"os/exec", []string{"internal/session/agent/opencode/bridge", "internal/session/agent/scripted/program", "engine/...", "image/...", "internal/s3/mount",
		"internal/s3/embedded", "internal/base/testenv", "tools/testrun", "test/stubs/s3test",
		"tools/release", "app", "cmd/harvest/...", "bench/...", "e2e/..."},
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
