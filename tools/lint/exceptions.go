package lint

// noEvent is the reason of several exceptions.
const noEvent = "there is no event for the end of processes that are not children"

// exceptions are accepted breaches, by file and rule, with the reason. An unused exception is a finding.
var exceptions = map[string]string{
	"internal/base/testenv/leaks.go time.Sleep": "there is no event for the end of a foreign process",
	"internal/base/testenv/wait.go time.Sleep":  "it polls a condition that sends no event",

	"internal/session/agent/release/release.go os.Setenv": "the part has the environment of its process",
	"tools/bench/modal.go os.Setenv":                      "Modal's SDK takes its server from the environment alone",

	"internal/engine/fake/fault.go context.Background":  "injected faults run by themselves; no caller waits for them",
	"internal/engine/fake/engine.go os.Exit":            "the entry of a helper process",
	"internal/engine/proc/keeper.go context.Background": "the caller is gone; its child processes must end too",
	"internal/engine/proc/keeper.go os.Exit":            "the entry of a helper process",
	"internal/engine/proc/table.go time.Sleep":          noEvent,
	"internal/engine/modal/inside/inside.go os.Exit":    "the entry of a helper process",
	"internal/engine/fake/sandbox.go time.Sleep":        noEvent,

	"internal/s3/embedded/serve/child.go os.Exit": "the entry of a helper process",

	"internal/s3/mount/child.go os.Exit":      "the entry of a helper process",
	"internal/s3/mount/manager.go time.Sleep": noEvent,

	"internal/engine/gvisor/boot.go exec.Command":            "a keeper outlives who started it",
	"internal/engine/gvisor/cgroup/cgroup.go time.Sleep":     "cgroup v1 sends no event when a cgroup is empty",
	"internal/engine/container/pid1/main.go os.Exit":         "the entry of a helper process",
	"internal/engine/gvisor/keeper/main.go os.Exit":          "the entry of helper processes",
	"internal/engine/gvisor/tool/tool.go os.Exit":            "the entry of helper processes",
	"internal/engine/gvisor/runsc/sandbox.go exec.Command":   "a sandbox lives as long as its keeper",
	"internal/engine/gvisor/sentry/sentry.go os.Exit":        "the entry of gVisor's processes",
	"internal/engine/gvisor/keeper/kill.go time.Sleep":       "there is no event for the end of a process in gVisor",
	"internal/engine/gvisor/keeper/keeper.go os.Chdir":       "a keeper is a process of its own, with one directory",
	"internal/engine/gvisor/tool/tool.go context.Background": "what a tool does ends with its process",

	"internal/engine/gvisor/keeper/network/network.go context.Background": "a keeper has no caller",

	"internal/fleet/broker/broker.go imports": "net/http takes no other logger, and sandboxes must not fill the log",
	"internal/fleet/broker/handle.go panic":   "net/http breaks an answer off for nothing else",

	"internal/server/files/files.go tar.Header":           "the time is set once the whole content has arrived",
	"internal/image/dockerfile/files/delta.go tar.Header": "a mark in a layer, which becomes no file",
	"test/host/modalhost/images.go tar.Header":            "files of images for tests, whose times no test reads",

	"internal/engine/kubernetes/api.go imports":      "client-go's log is off: requests return their errors",
	"internal/engine/kubernetes/reach.go net.Dialer": "it connects to the pods of the operator's own cluster",
	"internal/ssh/inside/inside.go net.Dialer":       "it runs in a sandbox, whose gateway checks its connections",

	"tools/kubernetes/cluster/cluster.go exec.Command": "a component lives as long as its cluster",
	"tools/kubernetes/cluster/cluster.go net.Dialer":   "it connects to its own components on this machine",

	"internal/image/library.go context.Background": "opening and finding read a directory, for no caller with a ctx",

	"internal/server/edge/errors.go panic":               "net/http breaks a stream of HTTP/2 off for nothing else",
	"internal/base/dirlock/dirlock.go time.Sleep":        "no event says that a process wrote its pid, or ended",
	"internal/store/migrate.go panic":                    "the files are in the binary: a failure is one of the build",
	"internal/engine/volume/local.go context.Background": "it empties the trash in the background, for no caller",
}
