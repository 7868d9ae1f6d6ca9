package lint

import (
	"slices"
	"strconv"
	"strings"
)

// subjects are the folders of the tree from the bottom to the top, without internal. A package may import packages of
// its own subject and of those below it.
var subjects = []string{"client", "base", "s3", "image", "devcontainer", "engine", "fleet", "session", "store",
	"modal", "ssh", "web", "mcp", "server", "cli", "app", "cmd", "test", "tools"}

// height is the position of a package's subject, or -1 if it has none.
func height(pkg string) int {
	subject, _, _ := strings.Cut(pkg, "/")
	return slices.Index(subjects, subject)
}

// short is a path in the form of the rows: without internal.
func short(dir string) string { return strings.TrimPrefix(dir, "internal/") }

// row lists the packages of this repository that a package may import. Paths lack the prefix internal; "x/..." matches
// x and all packages below it.
type row struct {
	pkg  string
	may  []string
	hint string // alternative to any other import
}

// above is allowed in every package but the two at the bottom.
var above = []string{"client/errors", "base/logf", "base/characters", "base/pattern", "base/fault", "base/ids",
	"base/tasks"}

// handlersHint is the hint for the packages of handlers.
const handlersHint = "handlers know one subject; server joins them"

// commandsHint is the hint for the packages of commands.
const commandsHint = "commands know one subject; package main joins them, and starts servers"

// rows are the layers of ARCHITECTURE.md, from the bottom to the top. The first matching row counts.
var rows = []row{
	{"client/transport/...", nil, "it carries bytes; its users know their meaning"},
	{"client/errors", nil, "errors is at the bottom; what needs more belongs above it"},
	{"client/api", nil, "the wire format is plain; server and client convert"},
	{"client", []string{"client/api", "client/transport/bytestream", "client/transport/socket"},
		"the client knows the wire format only, so that programs can import it alone"},

	{"base/logf", nil, "logf is at the bottom; what needs more belongs above it"},
	{"base/testenv", nil,
		"helpers of all tests import no package of the module; put a helper that does beside its package"},
	{"base/netguard", []string{"base/iprange"}, "the guard knows addresses and rules; its callers know accounts"},
	{"base/config", nil, "config knows values only; its callers convert them"},
	{"base/account", []string{"base/config"}, "accounts are plain; the server asks them who may do what"},
	{"base/account/oidc", []string{"base/account", "base/config", "base/netguard"},
		"it identifies the caller, and the server decides the rights"},
	{"base/event", nil, "events are plain; the package that sends one fills it"},
	{"base/mcp", nil, "the description of MCP servers is plain; sessions and images write it down"},
	{"base/binding", nil, "a binding is a value; fleet/broker keeps to it"},
	{"base/authority", nil, "it signs; its callers know who trusts it"},
	{"base/installation", []string{"base/atomicfile"}, "a name is text in a file; its callers know where it is used"},
	{"base/grant", []string{"base/config"}, "it knows providers; base/secret keeps grants"},
	{"base/secret", []string{"base/authority", "base/binding", "base/config", "base/grant"},
		"secrets are plain; fleet and session decide who gets them"},
	{"base/places", nil, "a place is a value; s3 knows how to reach it"},
	{"base/...", nil, "these packages are plain helpers; pass what they need as parameters"},

	{"image", []string{"base/atomicfile", "base/filelock", "base/tarfs"},
		"the contract of images stands alone; it runs steps through a small interface of its own, never an engine"},
	{"image/agent", []string{"base/mcp", "base/tarfs", "image/..."},
		"images know nothing of engines; take a small Runner interface"},
	{"image/...", []string{"base/atomicfile", "base/filelock", "base/netguard", "base/processes", "base/tarfs",
		"base/testenv", "image/..."}, "images know nothing of engines; take a small Runner interface"},

	{"devcontainer", []string{"base/netguard", "base/tarfs", "image"},
		"it is pure: it says what files mean; its callers build images and run commands"},

	{"engine/gateway/...", []string{"base/iprange", "engine/gateway/..."},
		"the gateway is plain: its callers pass the policy"},
	{"engine/volume", []string{"base/tarfs"}, "volumes know nothing of engines"},
	{"engine", []string{"base/places", "base/tarfs", "engine/volume", "image"},
		"the contract of engines knows images, volumes and names of places only; policy belongs in fleet"},
	{"engine/enginetest", []string{"base/tarfs", "base/testenv", "engine", "engine/enginetest/probe", "engine/volume",
		"image"}, "the suite uses the contract only, so that every engine can run it"},
	{"engine/enginetest/probe", []string{"base/testenv", "engine"}, "it uses the contract only, as the suite does"},
	{"engine/proc", []string{"base/atomicfile", "engine"}, "it starts processes, and knows no engine"},
	{"engine/fake/...", []string{"base/atomicfile", "base/tarfs", "engine", "engine/proc", "engine/volume/...",
		"image/..."}, "engines hold no policy and do not know one another"},
	{"engine/gvisor/wire/mutual", []string{"base/atomicfile", "base/authority", "engine/gvisor/wire"},
		"it carries bytes; engines know sandboxes"},
	{"engine/gvisor/...", []string{"base/atomicfile", "base/privilege", "base/processes", "base/tarfs",
		"client/transport/socket", "engine", "engine/container/...", "engine/gateway/...", "engine/gvisor/...",
		"engine/ocilayer", "engine/volume/...", "image/..."}, "engines hold no policy and do not know one another"},
	{"engine/kubernetes/pod", []string{"engine", "engine/gvisor/wire/...", "engine/volume", "image", "s3/share",
		"s3/volsync"},
		"the agent passes a keeper's protocol on; the program of the pod opens the engine"},
	{"engine/kubernetes/podimage", nil, "an image is made of files; its callers know which"},
	{"engine/kubernetes/kubetest", []string{"base/testenv", "engine/kubernetes/podimage"},
		"tests get a cluster, and use the engine themselves"},
	{"engine/kubernetes/inside", []string{"base/processes", "engine", "engine/gvisor", "engine/gvisor/wire/mutual",
		"engine/kubernetes/pod", "engine/volume"}, "the program of a pod is an engine of one machine with an agent"},
	{"engine/kubernetes", []string{"base/atomicfile", "base/installation", "client/transport/bytestream", "engine",
		"engine/gvisor/wire/...", "engine/kubernetes/pod", "engine/volume", "image", "s3/embedded", "s3/share",
		"s3/volsync"},
		"engines hold no policy and do not know one another, save how they speak to a keeper"},
	{"engine/ocilayer", nil, "the form of a layer is plain; its callers know whose files they are"},
	{"engine/container/...", []string{"engine/container/...", "engine/gateway/...", "engine/gvisor/userns",
		"engine/ocilayer"},
		"a container knows nothing of the keeper that owns it"},
	{"engine/modal/...", []string{"base/atomicfile", "base/installation", "base/places", "base/processes", "base/tarfs",
		"engine", "engine/gateway",
		"engine/gvisor/wire", "engine/modal/...", "engine/proc", "engine/volume/...", "image/..."},
		"engines hold no policy and do not know one another, save how they speak to a keeper"},

	{"s3/embedded/serve", []string{"s3/embedded"}, "the process that serves S3 knows who starts it, and nothing else"},
	{"s3/embedded", []string{"base/atomicfile"}, "the embedded S3 keeps its keys in a file"},
	{"s3/tree", nil, "a tree is files of one machine; its callers know buckets"},
	{"s3", []string{"base/netguard", "s3/tree"}, "s3 says how to reach a place; the packages below it work there"},
	{"s3/buffer", nil, "buffers are memory; their users know objects"},
	{"s3/manifest", []string{"s3/tree"}, "a manifest is a file of entries; its readers know where it is"},
	{"s3/object/wire", []string{"base/netguard"}, "it sends requests; s3/object knows what they mean"},
	{"s3/object", []string{"base/netguard", "client/transport/socket", "s3", "s3/buffer", "s3/manifest",
		"s3/object/wire", "s3/tree"}, "the client of a bucket knows single objects; syncs are above it"},
	{"s3/volsync/plan", []string{"s3/manifest", "s3/tree"}, "a plan is pure: pass what it needs as parameters"},
	{"s3/volsync/state", []string{"base/atomicfile", "s3/manifest", "s3/object", "s3/tree", "s3/volsync/plan"},
		"the state is this machine's records; volsync decides when to write them"},
	{"s3/volsync/remote", []string{"s3/buffer", "s3/manifest", "s3/object", "s3/tree", "s3/volsync/state"},
		"it reads a bucket's entries; volsync decides about them"},
	{"s3/volsync/pack", []string{"s3/buffer", "s3/manifest", "s3/object", "s3/tree", "s3/volsync/plan",
		"s3/volsync/state"}, "packs are copies of small files; volsync decides when to make and use them"},
	{"s3/volsync", []string{"s3/buffer", "s3/manifest", "s3/object", "s3/tree", "s3/volsync/..."},
		"a sync knows a tree and a bucket; storage knows volumes"},
	{"s3/share", []string{"client/transport/socket", "s3", "s3/embedded", "s3/object", "s3/tree", "s3/volsync",
		"s3/volsync/plan"}, "it keeps directories equal; its callers know volumes and machines"},
	{"s3/mount", []string{"base/atomicfile", "base/places", "base/processes", "client/transport/socket", "s3",
		"s3/object", "s3/tree"}, "a mount serves files of a bucket; its callers know sandboxes"},

	{"fleet/usage", []string{"engine"}, "it measures; fleet knows when a sandbox runs"},
	{"fleet/spec", []string{"base/account", "base/places", "base/secret", "engine", "engine/gateway", "engine/volume",
		"image"}, "a request is checked without a Fleet: pass abilities as Rules"},
	{"fleet/record", []string{"base/event", "engine", "fleet/spec", "fleet/usage"},
		"records are values; fleet changes them and store keeps them"},
	{"fleet/reserve", []string{"fleet/spec"}, "it compares numbers; fleet knows who has which sandboxes"},
	{"fleet/carry", []string{"engine"}, "it says when; fleet carries over"},
	{"fleet/leftover", []string{"engine"}, "it destroys sandboxes; fleet knows which must end"},
	{"fleet/commands", []string{"engine", "fleet/record"}, "it knows one sandbox through functions; fleet has all"},
	{"fleet/denials", []string{"engine", "engine/gateway", "fleet/record"},
		"it knows one sandbox through functions; fleet has all"},
	{"fleet/storage", []string{"base/netguard", "base/places", "base/secret", "engine/volume", "s3", "s3/object",
		"s3/tree", "s3/volsync", "s3/volsync/plan"}, "storage joins volumes and buckets; its callers know the rest"},
	{"fleet/transfer", []string{"engine", "fleet/record", "fleet/spec", "fleet/storage"},
		"it knows the files of one sandbox; take an interface for S3, and let app name the implementation"},
	{"fleet/images", []string{"base/account", "base/secret", "engine", "fleet/record", "fleet/spec", "image"},
		"it asks the engine for images; fleet knows which are in use"},
	{"fleet/checkpoint", []string{"base/atomicfile", "base/secret", "fleet/record", "fleet/spec"},
		"it keeps directories; fleet asks the engine"},
	{"fleet/broker", []string{"base/authority", "base/binding", "base/secret", "engine", "fleet/record"},
		"it knows connections and credentials; fleet/lending knows who has which"},
	{"fleet/lending", []string{"base/secret", "engine", "engine/gateway", "fleet/broker", "fleet/record",
		"image/trust", "image/trust/installer"},
		"it knows one sandbox through functions; fleet has all"},
	{"fleet/boots", nil, "it counts and waits; fleet boots"},
	{"fleet/pool", []string{"base/account", "engine", "fleet/boots", "fleet/record", "fleet/spec", "image"},
		"it boots and keeps; fleet takes"},
	{"fleet/python", []string{"fleet", "fleet/commands", "fleet/spec"}, "it uses a Fleet as any client does"},
	{"fleet/refresh", []string{"engine/volume", "fleet", "fleet/python", "fleet/spec", "image"},
		"it uses a Fleet as any client does"},
	{"fleet/build", []string{"base/account", "engine/volume", "fleet", "fleet/record", "fleet/spec",
		"image/dockerfile"}, "it uses a Fleet as any client does"},
	{"fleet", []string{"base/account", "base/secret", "base/tarfs", "engine", "engine/volume", "fleet/boots",
		"fleet/carry", "fleet/checkpoint", "fleet/commands", "fleet/denials", "fleet/images", "fleet/leftover",
		"fleet/lending", "fleet/pool", "fleet/record", "fleet/reserve", "fleet/spec", "fleet/transfer", "fleet/usage",
		"image"},
		"fleet uses contracts; take an interface for upper layers, and let app name the concrete engine"},
	{"fleet/schedule", []string{"base/event"}, "schedule runs functions that it is given"},

	{"session/git", nil, "git returns scripts; its callers run them in sandboxes"},
	{"session/github", []string{"base/config", "base/netguard"},
		"it knows GitHub's API only; session decides for whom"},
	{"session/cause", nil, "it is a word and its texts"},
	{"session/egress", []string{"base/event", "engine", "fleet/record"}, "it reads events; session publishes them"},
	{"session/model", []string{"base/config", "base/netguard", "session/cause"},
		"the gateway to models is plain: its callers pass credentials"},
	{"session/model/tunnel", nil, "the tunnel carries requests and knows nothing of them"},
	{"session/memory/names", nil, "it makes names, also for the command line"},
	{"session/memory", []string{"engine/volume"}, "memory is files in volumes; session mounts them"},
	{"session/agent", []string{"base/mcp", "engine"}, "agents are pure: they make a command and decode lines"},
	{"session/agent/agenttest", []string{"base/mcp", "session/agent"},
		"helpers of tests know the contract of agents only"},
	{"session/agent/acp/bridge", []string{"base/jsonrpc", "base/mcp", "session/agent", "session/agent/acp",
		"session/agent/npm"},
		"it runs in a sandbox and knows its own agent only"},
	{"session/agent/release", []string{"engine", "session/agent/npm"},
		"it runs in a sandbox and knows packages, not agents"},
	{"session/agent/opencode/bridge", []string{"session/agent", "session/agent/opencode"},
		"it runs in a sandbox and knows its own agent only"},
	{"session/agent/scripted/program", []string{"session/agent", "session/agent/scripted"},
		"it runs in a sandbox and knows its own agent only"},
	{"session/agent/...", []string{"base/mcp", "engine", "session/agent"},
		"agents are pure: they make a command and decode lines"},
	{"session/shell", []string{"fleet", "fleet/commands"}, "it runs any script; its callers know their meaning"},
	{"session/pipe", []string{"engine", "fleet", "fleet/commands", "session/shell"},
		"lines and bytes; session knows their meaning"},
	{"session/credentials", []string{"base/binding", "base/config", "base/secret", "fleet", "session/git",
		"session/github", "session/shell"},
		"credentials of git; session decides when to fetch them"},
	{"session/workspace", []string{"fleet", "fleet/commands", "session/credentials", "session/git",
		"session/memory/names", "session/pipe", "session/shell"}, "it works in the sandbox; session decides when"},
	{"session/text", nil, "texts only"},
	{"session/inbox", []string{"base/event", "session/agent"}, "it keeps items; session knows what waits"},
	{"session/inbox/notify", []string{"session/inbox"}, "it sends items; session/inbox knows which are due"},
	{"session/inputs", []string{"session/records", "session/uploads", "session/workspace"},
		"it keeps the files of a session; session decides when they are needed"},
	{"session/uploads", nil, "it keeps files; session knows their meaning"},
	{"session/pulls", []string{"session/git", "session/github", "session/text", "session/workspace"},
		"it knows GitHub and the text; session pushes the work and asks the agent"},
	{"session/models", []string{"engine", "fleet", "session/agent", "session/model", "session/model/tunnel",
		"session/shell"}, "it connects any sandbox; session knows which agent needs it"},
	{"session/servers", []string{"base/mcp", "base/secret", "fleet", "session/agent", "session/shell"},
		"it knows servers and the agent's reports; session sends the agent's input"},
	{"session/volumes", []string{"base/account", "base/mcp", "engine/volume", "fleet/spec", "session/git",
		"session/memory", "session/memory/names", "session/shell", "session/workspace"},
		"it knows files; session knows when they change"},
	{"session/spares", nil, "it counts and waits; session makes and takes"},
	{"session/once", []string{"engine", "fleet", "fleet/commands", "fleet/record", "session/agent", "session/model",
		"session/models", "session/pipe", "session/shell"}, "it knows no session"},
	{"session/container", []string{"base/secret", "devcontainer", "fleet", "fleet/spec", "image",
		"image/dockerfile/plan", "session/shell"}, "it runs dev containers; package devcontainer knows what they mean"},
	{"session/preparation", []string{"base/secret", "devcontainer", "engine/volume", "fleet", "fleet/record",
		"fleet/spec", "image", "session/agent", "session/container", "session/credentials", "session/models",
		"session/records", "session/shell", "session/volumes", "session/workspace"},
		"it does the steps; session starts and reports them"},
	{"session/snapshots", []string{"base/account", "fleet", "fleet/record", "image", "session/preparation",
		"session/records"}, "it removes files; app knows when"},
	{"session/records", []string{"base/event", "engine", "fleet/record", "fleet/spec", "session/agent", "session/cause",
		"session/git", "session/workspace"}, "records are values; session changes them and store keeps them"},
	{"session/questions", []string{"session/agent"}, "it is pure; session asks and answers"},
	{"session/past", []string{"session/agent", "session/records", "session/shell", "session/volumes"},
		"it reads the conversation; session sends prompts"},
	{"session", []string{"base/event", "base/mcp", "base/secret", "engine/volume", "fleet", "fleet/commands",
		"fleet/record", "fleet/spec", "session/..."},
		"session uses contracts; let app name the concrete agents"},
	{"session/repo", []string{"base/account", "base/binding", "base/config", "base/event", "base/secret", "base/tarfs",
		"devcontainer", "fleet", "fleet/record", "fleet/spec", "image", "session/container", "session/git",
		"session/repo/...", "session/shell"}, "repo builds images through fleet"},
	{"session/repo/failure", []string{"fleet/commands"}, "it reads the output of a step"},
	{"session/repo/python", nil, "it compares versions"},

	{"store/dicts", nil, "Dicts are records; modal knows the protocol"},
	{"store/records", nil, "records are bytes; the packages that make them know their meaning"},
	{"store/testdb", []string{"store"}, "helpers of tests know the database only"},
	{"store/...", []string{"base/account", "base/atomicfile", "base/binding", "base/dirlock", "base/event",
		"base/grant", "base/secret", "engine", "fleet/record", "fleet/schedule", "fleet/spec", "fleet/usage",
		"fleet/storage", "session/agent", "session/inbox", "session/records", "session/repo",
		"session/workspace", "store/dicts", "store/records"},
		"the store implements small interfaces of the packages whose records it keeps"},

	{"modal/...", []string{"base/account", "base/atomicfile", "base/authority", "base/places", "base/secret",
		"base/tarfs", "engine",
		"engine/volume", "fleet", "fleet/checkpoint", "fleet/commands", "fleet/record", "fleet/reserve", "fleet/spec",
		"image", "modal/...", "store/dicts", "store/records"}, "modal is a second face of the core beside server"},

	{"server/edge", []string{"base/account", "client/api"}, "the base of handlers knows no subject; pass values to it"},
	{"server/authorize", []string{"base/account", "client/api", "server/edge"},
		"it knows OAuth and accounts; server gives it what it needs of a request"},
	{"server/openapi", []string{"client/api", "server/edge"}, "the description is made from routes alone"},
	{"server/files", []string{"base/account", "base/tarfs", "client/api", "fleet", "server/edge"}, handlersHint},
	{"server/images", []string{"base/account", "base/secret", "client/api", "fleet", "image", "server/edge"},
		handlersHint},
	{"server/inbox", []string{"base/account", "client/api", "server/edge", "session/inbox"}, handlersHint},
	{"server/jobs", []string{"client/api", "engine", "fleet", "fleet/commands", "fleet/python", "fleet/record",
		"fleet/schedule", "fleet/spec", "server/edge", "server/sessions", "session", "session/records"},
		"the jobs of schedules do what requests of the API do"},
	{"server/logins", []string{"base/account", "base/grant", "base/secret", "client/api", "server/edge"}, handlersHint},
	{"server/repos", []string{"base/account", "client/api", "fleet/spec", "server/edge", "session/repo"}, handlersHint},
	{"server/sandboxes", []string{"base/account", "client/api", "engine", "fleet", "fleet/commands", "fleet/python",
		"fleet/record", "fleet/spec", "fleet/usage", "image", "server/edge", "server/images"}, handlersHint},
	{"server/schedules", []string{"base/account", "client/api", "fleet/schedule", "server/edge"}, handlersHint},
	{"server/secrets", []string{"base/account", "base/binding", "base/secret", "client/api", "server/edge"},
		handlersHint},
	{"server/sessions", []string{"base/account", "client/api", "engine/volume", "fleet/spec", "server/edge", "session",
		"session/agent", "session/git", "session/memory", "session/pulls", "session/records", "session/uploads",
		"session/volumes", "session/workspace"}, handlersHint},
	{"server/volumes", []string{"base/account", "base/places", "client/api", "engine/volume", "fleet", "s3/object",
		"fleet/storage", "s3/volsync", "s3/volsync/plan", "server/edge"}, handlersHint},
	{"server", []string{"base/account", "base/account/oidc", "base/config", "base/event", "base/places", "base/secret",
		"client", "client/api", "client/transport/bytestream", "engine/volume", "fleet", "fleet/record",
		"fleet/schedule", "fleet/spec", "image", "mcp", "fleet/storage", "server/...", "session", "session/agent",
		"session/inbox", "session/repo", "web"},
		"the server uses contracts; let app name the concrete engine"},

	{"ssh/inside", []string{"client/transport/bytestream"}, "it runs in sandboxes, without a server"},
	{"ssh", []string{"base/account", "base/atomicfile", "client/transport/bytestream", "engine", "fleet",
		"fleet/commands", "ssh/inside"},
		"it connects clients of SSH with sandboxes; app gives it the names and keys"},

	{"web", nil, "the UI is files; the server serves them"},

	{"mcp", []string{"client", "client/api", "session/git"},
		"tools are a client of the API; the command line gives them what concerns this machine"},

	{"cli/chat", []string{"client", "client/api"},
		"a conversation knows the wire format; the command line gives it what concerns git"},
	{"cli", []string{"base/config", "base/release", "base/secret", "base/tarfs", "client", "client/api"},
		"the base of commands knows no subject; pass values to it"},
	{"cli/worktree", []string{"base/atomicfile", "cli/chat", "client/api", "session/git", "session/memory/names"},
		"it knows git and files; cli/agents asks the server"},
	{"cli/editor", []string{"base/jsonrpc", "cli/chat", "client", "client/api"},
		"it knows the protocol of editors; the command line gives it what concerns git"},
	{"cli/agents", []string{"base/release", "cli", "cli/chat", "cli/editor", "cli/worktree", "client", "client/api",
		"client/transport/bytestream", "mcp", "session/memory/names"}, commandsHint},
	{"cli/files", []string{"base/tarfs", "cli", "client", "client/api"}, commandsHint},
	{"cli/images", []string{"base/tarfs", "cli", "cli/chat", "client", "client/api"}, commandsHint},
	{"cli/sandboxes", []string{"cli", "cli/chat", "cli/files", "cli/images", "client", "client/api",
		"client/transport/bytestream"}, commandsHint},
	{"cli/repos", []string{"cli", "cli/chat", "client", "client/api"}, commandsHint},
	{"cli/schedules", []string{"cli", "client", "client/api"}, commandsHint},
	{"cli/ssh", []string{"base/atomicfile", "cli", "client", "client/api"}, commandsHint},
	{"cli/secrets", []string{"base/binding", "base/secret", "cli", "client", "client/api"}, commandsHint},

	{"app/programs", nil, "it unpacks programs; app and the command line start them"},
	{"app/programs/own", []string{"image/dockerfile/mounts", "image/trust/installer", "session/agent/acp",
		"session/agent/acp/bridge", "session/agent/opencode", "session/agent/opencode/bridge",
		"session/agent/release", "session/agent/scripted", "session/agent/scripted/program", "session/model/tunnel",
		"ssh/inside"},
		"it lists programs; each belongs to the package that starts it"},
	{"app/programs/pack", nil, "it compresses files for the build"},
	{"app/startup", []string{"client/api"}, "the command and the server that it starts share these few names"},
	{"app", []string{"..."}, "app connects all parts; only commands import it"},

	{"cmd/harvest/...", []string{"..."}, ""},

	{"test/stubs/s3server", []string{"s3/embedded/serve"}, "it serves a directory as S3, without the rest of Harvest"},
	{"test/stubs/s3test", []string{"base/testenv"}, "helpers of tests know the package that they are beside only"},
	{"test/stubs/oauthtest", nil, "the stub knows the protocol only"},
	{"test/stubs/modeltest", nil, "the stub knows the API's protocol only"},
	{"test/stubs/sandboxtest", []string{"engine", "engine/fake", "fleet", "store/testdb"},
		"helpers of tests know Fleets and the fake engine only"},
	{"test/stubs/modaltest", nil, "helpers of tests know Modal's protocol only"},
	{"test/...", []string{"..."}, "whole-run tests drive the built binary"},

	{"tools/chart", nil, "its tests render the chart with Helm; they import no package of Harvest"},
	{"tools/coverage", nil, "the gate reads profiles, not packages"},
	{"tools/image", []string{"engine/kubernetes/podimage"}, "it makes images from the built programs"},
	{"tools/kubernetes", []string{"tools/kubernetes/cluster"}, "the command calls package cluster"},
	{"tools/kubernetes/...", []string{"engine/kubernetes/podimage"}, "a cluster is made of programs of others"},
	{"tools/lint", nil, "the rules read files, not packages"},
	{"tools/testrun", []string{"base/testenv"}, "the runner of tests reads packages, it imports none"},
	{"tools/release", nil, "a release is made of the built programs; it imports none of their packages"},
	{"tools/peers/...", nil, "peers are programs of others; they know nothing of Harvest"},
	{"tools/bench/...", []string{"..."}, ""},
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
		i := slices.IndexFunc(rows, func(r row) bool { return fits(r.pkg, f.pkg()) })
		if i < 0 || height(f.pkg()) < 0 {
			all = append(all, Finding{f.path, 0, "layers", "package " + f.dir() + " has no row",
				"add one to tools/lint/layers.go and the picture in ARCHITECTURE.md"})
			continue
		}
		for _, spec := range f.ast.Imports {
			target, _ := strconv.Unquote(spec.Path.Value)
			dep, ours := strings.CutPrefix(target, modulePath+"/")
			dep = short(dep)
			rises := height(dep) > height(f.pkg()) && !f.isTest()
			if !ours || dep == f.pkg() || !rises && allowed(rows[i], f, dep) {
				continue
			}
			hint := rows[i].hint
			switch {
			case helper(dep):
				hint = "import it in tests only"
			case rises:
				hint = "imports point down: move what both need below them, or take an interface"
			}
			all = append(all, Finding{f.path, f.line(spec), "layers", f.pkg() + " may not import " + dep, hint})
		}
	}
	return all
}

// helpers are the packages that help tests of other packages.
var helpers = []string{"base/testenv", "engine/enginetest", "engine/enginetest/probe", "engine/kubernetes/kubetest",
	"image/imagetest",
	"session/agent/agenttest",
	"store/storetest", "store/testdb"}

// helper reports whether pkg exists for tests.
func helper(pkg string) bool {
	return fits("test/...", pkg) || pkg == "tools/testrun" || pkg == "tools/lint" || slices.Contains(helpers, pkg)
}

// allowed reports whether f, of a package with row r, may import dep.
func allowed(r row, f *file, dep string) bool {
	may := slices.ContainsFunc(r.may, func(p string) bool { return fits(p, dep) })
	switch {
	case f.isTest():
		return !fits("cmd/...", dep) && !fits("cli/...", dep) || may
	case helper(dep) && !helper(f.pkg()):
		return fits("tools/bench/...", f.pkg())
	case r.pkg == "client/errors" || r.pkg == "base/logf":
		return false
	}
	return may || slices.Contains(above, dep)
}

// commands are the packages of the command line.
var commands = []string{"cli/...", "cmd/..."}

// others lists where a third-party library or a standard package may be imported. Tests are exempt.
var others = []struct {
	path string // "x/..." matches x and all packages below it
	in   []string
	hint string
}{
	{"gvisor.dev/...", []string{"engine/container/filter", "engine/gvisor/...", "engine/gateway/netstack",
		"tools/bench/runsc"},
		"ask the engine through its contract"},
	{"github.com/spf13/...", commands, "only the command line has commands and flags"},
	{"github.com/hanwen/go-fuse/...", []string{"s3/mount"}, "s3/mount alone serves file systems"},
	{"modernc.org/...", []string{"store/..."}, "declare a small Store interface and implement it in store"},
	{"github.com/goccy/go-yaml/...", slices.Concat(commands, []string{"base/config", "session/repo"}),
		"add a row to the options of package config"},
	{"github.com/charmbracelet/...", []string{"cli/chat"}, "only the conversation draws on terminals"},
	{"github.com/yuin/goldmark/...", []string{"cli/chat"}, "only the conversation renders Markdown"},
	{"github.com/modelcontextprotocol/...", []string{"cli/agents", "mcp", "server"},
		"tools of the Model Context Protocol belong to package mcp"},
	{"github.com/schollz/progressbar/...", []string{"cli"}, "report progress to a function; the command line draws it"},
	{"testing/...", slices.Concat(helpers, []string{"test/...", "tools/bench/..."}), "move it to a _test.go file"},
	{"errors", []string{"client/errors"}, "import " + modulePath + "/client/errors"},
	{"log", []string{"test/host/modalhost"}, "write logf.Infof(ctx, …)"},
	{"log/slog", []string{"base/logf", "base/config"},
		"write logf.Infof(ctx, …), and logf.With(ctx, …) for attributes"},
	{"os/exec", slices.Concat(commands, []string{"app", "base/testenv", "engine/...", "image/...", "s3/embedded",
		"s3/mount", "session/agent/acp/bridge", "session/agent/npm", "session/agent/opencode/bridge",
		"session/agent/release", "session/agent/scripted/program", "session/inbox/notify", "test/...", "tools/..."}),
		"only engines, mounts of S3 and its embedded server, image builders, the operator's command of the inbox and " +
			"the command line start programs"},
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
				if fits(o.path, target) && !slices.ContainsFunc(o.in, func(p string) bool { return fits(p, f.pkg()) }) {
					all = append(all, Finding{f.path, f.line(spec), "imports",
						f.pkg() + " may not import " + target, o.hint})
				}
			}
		}
	}
	return all
}
