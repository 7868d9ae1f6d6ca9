package spec

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/docker/go-units"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// Limits of a Request.
const (
	BaseImage  = "base" // image of requests without one
	IDPrefix   = "sbx_"
	MinCPU     = 0.01
	MinMemory  = 32 << 20 // with less, even a shell does not start
	MinDisk    = 1 << 20
	maxTags    = 64
	maxMounts  = 64
	maxSecrets = 64
	maxPorts   = 64
	MaxRefText = 256
)

var (
	namePattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)
	tagPattern  = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_./-]{0,62}$`)
	hostPattern = pattern.New(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)
	gpuPattern  = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9-]{0,30}(:[1-9][0-9]?)?$`)
	userPattern = pattern.New(`^[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,31}(:[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,31})?$`)
)

// Machine is the total capacity.
type Machine struct {
	CPU    float64
	Memory int64
}

// Timeouts are the defaults and upper bounds of time limits.
type Timeouts struct {
	Life    time.Duration // of a sandbox: 24 h
	Idle    time.Duration // of a sandbox: 0, none
	MaxLife time.Duration // 7 days; also bounds idle limits and commands
	Exec    time.Duration // of a command: 30 minutes
	Grace   time.Duration // between SIGTERM to running commands and SIGKILL in Destroy: 2 s
}

// Rules decide what a request may ask for: the abilities of the server and its engine, defaults and upper bounds.
type Rules struct {
	Engine string // its name
	Can    engine.Capabilities
	// Isolations are the kinds of isolation that requests may name, with what the engine can do in each. Empty: the
	// engine has one, and Can is of that.
	Isolations map[string]engine.Capabilities
	Isolation  string // the default kind; "" if Isolations is empty

	Snapshots bool // snapshots can be made
	Secrets   bool // the server stores secrets
	S3        bool // the server syncs volumes with S3
	Mounts    bool // the server mounts S3

	Defaults engine.Limits
	Machine  Machine
	Timeouts Timeouts
}

// Plan is a validated Request with all defaults.
type Plan struct {
	Request
	Limits         engine.Limits // in force
	ReservedCPU    float64       // for quotas and cost, whether or not the engine enforces the limit
	ReservedMemory int64
	Life, Idle     time.Duration
	Synced         string   // name of the volume that S3 syncs; "" for none
	SyncedOwn      bool     // Synced is named after its location
	Stored         []string // those of Secrets that Harvest stores
	Provided       []string // those that the engine's provider stores, by their names there
}

// Plan validates req and fills in the defaults. Its error lists all problems.
func (r Rules) Plan(req Request) (Plan, error) {
	var p Problems
	r, req.Isolation = r.isolate(&p, req.Isolation)
	CheckNames(&p, req)
	CheckEnv(&p, req.Env)
	req, volume := r.withS3(&p, req)
	checkMounts(&p, req.Volumes)
	if req.Engine != "" && req.Engine != r.Engine {
		p.Addf(errors.Unsupported, "omit engine", "unknown engine %.80q; this server has only %s", req.Engine,
			r.Engine)
	}
	if len(req.Volumes) > 0 && !r.Can.Volumes {
		p.Addf(errors.Unsupported, "omit volumes", "the engine %s does not support volumes on this machine",
			r.Engine)
	}
	if req.User != "" && !r.Can.Users {
		p.Addf(errors.Unsupported, "omit user", "the engine %s does not support users on this machine",
			r.Engine)
	}
	r.checkGPU(&p, req.GPU)
	r.checkHostname(&p, req.Hostname)
	if req.SnapshotOnEnd || req.IdleAction == IdleSuspend {
		r.CheckSnapshots(&p)
	}
	checkStart(&p, req)
	checkPorts(&p, req.Ports)
	out := Plan{Request: req, Synced: volume.name, SyncedOwn: volume.own}
	r.checkSecrets(&p, &out)
	out.Image = cmp.Or(req.Image, BaseImage)
	out.Network = r.Network(&p, req.Network.Clone())
	out.Life = CheckTime(&p, "timeout_seconds", req.TimeoutSeconds, r.Timeouts.Life, r.Timeouts.MaxLife)
	out.Idle = CheckTime(&p, "idle_timeout_seconds", req.IdleTimeoutSeconds, r.Timeouts.Idle,
		r.Timeouts.MaxLife)
	if out.IdleAction == IdleSuspend && out.Idle == 0 {
		p.Invalidf("give idle_timeout_seconds", "a sandbox without an idle limit is never suspended")
	}
	if out.IdleAction == IdleEnd {
		out.IdleAction = ""
	}
	r.checkLimits(&p, &out)
	return out, p.Err()
}

// checkStart adds the problems of the start command, and of what happens at the idle limit.
func checkStart(p *Problems, req Request) {
	if req.IdleAction != "" && req.IdleAction != IdleEnd && req.IdleAction != IdleSuspend {
		p.Invalidf("use "+IdleEnd+" or "+IdleSuspend, "invalid idle_action %.40q", req.IdleAction)
	}
	if len(req.StartCommand) > 0 {
		p.Add(engine.CheckCommand(engine.Command{Args: req.StartCommand}))
	}
}

// isolate returns the rules for a kind of isolation, and the kind that "" stands for.
func (r Rules) isolate(p *Problems, kind string) (Rules, string) {
	kind = cmp.Or(kind, r.Isolation)
	can, allowed := r.Isolations[kind]
	switch {
	case allowed:
		r.Engine, r.Can = kind, can
	case kind == "":
	case len(r.Isolations) == 0:
		p.Addf(errors.Unsupported, "omit isolation",
			"the engine %s has one kind of isolation, and %.80q is none of its names", r.Engine, kind)
	default:
		p.Addf(errors.Unsupported, "use one of them; the operator allows others with isolation.allowed",
			"the isolation %.80q is not among those of this server: %s", kind,
			strings.Join(slices.Sorted(maps.Keys(r.Isolations)), ", "))
	}
	return r, kind
}

// CheckNames checks the names in a request.
func CheckNames(p *Problems, req Request) {
	if req.Name != "" && (!namePattern().MatchString(req.Name) || strings.HasPrefix(req.Name, IDPrefix)) {
		p.Invalidf("use 1 to 63 letters, digits, '_', '.' or '-', "+
			"beginning with a letter or digit and not with \""+IDPrefix+"\"",
			"invalid sandbox name %.100q", req.Name)
	}
	if !isText(req.Image, MaxRefText) {
		p.Invalidf("name an image that \"harvest image ls\" lists", "invalid image %.100q", req.Image)
	}
	CheckWhere(p, req.Workdir, req.User)
	CheckTags(p, req.Tags)
}

// CheckTags checks the tags of a sandbox.
func CheckTags(p *Problems, tags map[string]string) {
	if len(tags) > maxTags {
		p.Invalidf(fmt.Sprintf("use at most %d", maxTags), "%d tags are too many", len(tags))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		if !tagPattern().MatchString(key) {
			p.Invalidf("name tags with 1 to 63 letters, digits, '_', '.', '/' or '-'", "invalid tag name %.100q", key)
		}
		if !isText(tags[key], MaxRefText) {
			p.Invalidf(fmt.Sprintf("use up to %d bytes of text in one line", MaxRefText),
				"invalid value of the tag %.100q", key)
		}
	}
}

// CheckWhere validates working directory and user, as far as possible without the sandbox.
func CheckWhere(p *Problems, workdir, user string) {
	if workdir != "" && (!path.IsAbs(workdir) || path.Clean(workdir) != workdir || strings.ContainsRune(workdir, 0)) {
		p.Invalidf("give an absolute path without '..', such as /workspace",
			"invalid working directory %.200q", workdir)
	}
	if user != "" && !userPattern().MatchString(user) {
		p.Invalidf("give a name or a number, either followed by ':' and a group", "invalid user %.100q", user)
	}
}

func isText(s string, limit int) bool {
	return len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// CheckEnv checks the environment of commands.
func CheckEnv(p *Problems, env map[string]string) {
	before := p.count()
	for _, name := range slices.Sorted(maps.Keys(env)) {
		p.Add(engine.CheckEnvName(name))
		if strings.ContainsRune(env[name], 0) {
			p.Invalidf("remove the NUL bytes", "the environment variable %.100q contains a NUL byte", name)
		}
	}
	if p.count() == before { // only the size remains to be checked
		p.Add(engine.CheckCommand(engine.Command{Args: []string{"any"}, Env: env}))
	}
}

// Directories that the sandbox itself needs: volumes must not be mounted in kernel trees, and must not cover system
// trees.
var (
	kernelTrees = []string{"/proc", "/sys", "/dev"}
	systemTrees = []string{"/", "/bin", "/boot", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr", "/usr/bin",
		"/usr/lib", "/usr/sbin", "/var"}
)

func checkMounts(p *Problems, mounts []Mount) {
	if len(mounts) > maxMounts {
		p.Invalidf(fmt.Sprintf("use at most %d", maxMounts), "%d volumes are too many", len(mounts))
		return
	}
	for i, m := range mounts {
		p.Add(volume.CheckName(m.Name))
		if !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || strings.ContainsRune(m.Path, 0) {
			p.Invalidf("give an absolute path without '..' and without a trailing '/', such as /data",
				"volume %.130q: invalid mount point %.200q", m.Name, m.Path)
			continue
		}
		below := func(tree string) bool { return Within(tree, m.Path) }
		if slices.Contains(systemTrees, m.Path) || slices.ContainsFunc(kernelTrees, below) {
			p.Invalidf("mount it at another path, such as /data",
				"volume %.130q: would cover %s, which the sandbox needs", m.Name, m.Path)
		}
		for _, other := range mounts[:i] {
			if path.IsAbs(other.Path) && (Within(other.Path, m.Path) || Within(m.Path, other.Path)) {
				p.Invalidf("mount volumes beside each other", "the mount points %.200q and %.200q overlap",
					other.Path, m.Path)
			}
		}
	}
}

// Within reports whether the clean path p is tree or below it.
func Within(tree, p string) bool {
	return p == tree || strings.HasPrefix(p, strings.TrimSuffix(tree, "/")+"/")
}

// checkSecrets separates the secrets by where they are stored: modal:NAME is one that the engine modal's provider
// stores.
func (r Rules) checkSecrets(p *Problems, out *Plan) {
	if len(out.Secrets) > maxSecrets {
		p.Invalidf(fmt.Sprintf("name at most %d", maxSecrets), "%d secrets are too many", len(out.Secrets))
		return
	}
	for _, name := range out.Secrets {
		provider, rest, provided := strings.Cut(name, ":")
		switch {
		case !provided:
			out.Stored = append(out.Stored, name)
		case provider != r.Engine || !r.Can.Secrets:
			p.Addf(errors.Unsupported, "name a secret of Harvest's, which `harvest secret ls` lists",
				"secrets of %.80q are not supported for sandboxes of the engine %s", provider, r.Engine)
			continue
		default:
			out.Provided, name = append(out.Provided, rest), rest
		}
		p.Add(secret.CheckName(name))
	}
	if len(out.Stored) > 0 && !r.Secrets {
		p.Addf(errors.Unsupported, "omit secrets", "this server does not support secrets")
	}
}

// CheckProvided denies the provider's secrets to all accounts except that of the server's operator, who owns the
// account at the provider.
func CheckProvided(owner string, p Plan) error {
	if len(p.Provided) == 0 || owner == account.Personal {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "secrets of the engine's provider are for the account %s only",
		account.Personal), "store it with `harvest secret set`, and name that secret")
}

// CheckTime returns the time limit for seconds.
func CheckTime(p *Problems, field string, seconds float64, otherwise, most time.Duration) time.Duration {
	if seconds == 0 {
		return otherwise
	}
	if math.IsNaN(seconds) || seconds < 0 || seconds > most.Seconds() {
		p.Invalidf(fmt.Sprintf("give a number from 0, which means the default, to %.0f", most.Seconds()),
			"invalid %s: %s", field, strconv.FormatFloat(seconds, 'f', -1, 64))
		return otherwise
	}
	return time.Duration(seconds * float64(time.Second))
}

// checkHostname rejects a host name that the engine would ignore.
func (r Rules) checkHostname(p *Problems, name string) {
	switch {
	case name == "":
	case !hostPattern().MatchString(name):
		p.Invalidf("use 1 to 63 letters, digits or '-', not at the ends", "invalid host name %.100q", name)
	case !r.Can.Hostname:
		p.Addf(errors.Unsupported, "omit hostname", "the engine %s does not support host names of sandboxes",
			r.Engine)
	}
}

func (r Rules) checkGPU(p *Problems, gpu string) {
	switch {
	case gpu == "":
	case !gpuPattern().MatchString(gpu):
		p.Invalidf("name a kind, such as T4, or A100:2 for two", "invalid GPU %.100q", gpu)
	case !r.Can.GPUs:
		p.Addf(errors.Unsupported, "omit gpu, or use an engine with GPUs, such as modal",
			"the engine %s does not support GPUs", r.Engine)
	}
}

// checkLimits determines the limits: the requested value, else the default if the engine can enforce it.
func (r Rules) checkLimits(p *Problems, out *Plan) {
	asked := engine.Limits{CPU: out.CPU, Memory: out.Memory, Disk: out.Disk, Processes: out.Processes, Files: out.Files,
		VolumeFiles: out.VolumeFiles}
	machine, defaults := r.Machine, r.Defaults
	if math.IsNaN(asked.CPU) || asked.CPU < 0 || (asked.CPU > 0 && asked.CPU < MinCPU) || asked.CPU > machine.CPU {
		p.Invalidf(fmt.Sprintf("give a number of cores from %v to %v, or 0 for the default", MinCPU, machine.CPU),
			"invalid cpu: %v; this machine has %v cores", asked.CPU, machine.CPU)
	}
	if asked.Memory < 0 || (asked.Memory > 0 && asked.Memory < MinMemory) || asked.Memory > machine.Memory {
		p.Invalidf(fmt.Sprintf("give from %s to %s, or 0 for the default", units.BytesSize(MinMemory),
			units.BytesSize(float64(machine.Memory))),
			"invalid memory_bytes: %d (%s); this machine has %s", asked.Memory, units.BytesSize(float64(asked.Memory)),
			units.BytesSize(float64(machine.Memory)))
	}
	if asked.Disk < 0 || (asked.Disk > 0 && asked.Disk < MinDisk) {
		p.Invalidf("give at least "+units.BytesSize(MinDisk)+", or 0 for the default",
			"invalid disk_bytes: %d", asked.Disk)
	}
	if asked.Processes < 0 {
		p.Invalidf("give a positive number, or 0 for the default", "invalid processes: %d", asked.Processes)
	}
	if asked.Files < 0 {
		p.Invalidf("give a positive number, or 0 for the default", "invalid open_files: %d", asked.Files)
	}
	if asked.VolumeFiles < 0 || asked.VolumeFiles > defaults.VolumeFiles {
		p.Invalidf(fmt.Sprintf("give a number up to %d, or 0 for that; the operator can raise limits.volume_files",
			defaults.VolumeFiles), "invalid volume_files: %d", asked.VolumeFiles)
	}
	out.Limits.CPU = limit(r, p, "cpu", asked.CPU, defaults.CPU)
	out.Limits.Memory = limit(r, p, "memory", asked.Memory, defaults.Memory)
	out.Limits.Disk = limit(r, p, "disk", asked.Disk, defaults.Disk)
	out.Limits.Processes = limit(r, p, "processes", asked.Processes, defaults.Processes)
	out.Limits.Files = limit(r, p, "files", asked.Files, defaults.Files)
	out.Limits.VolumeFiles = limit(r, p, "volume_files", asked.VolumeFiles, defaults.VolumeFiles)
	out.ReservedCPU, out.ReservedMemory = cmp.Or(asked.CPU, defaults.CPU), cmp.Or(asked.Memory, defaults.Memory)
}

// limit returns the limit in force. If the engine cannot enforce it, according to its Capabilities, a default is
// dropped, and a requested limit is refused.
func limit[T int | int64 | float64](r Rules, p *Problems, name string, asked, otherwise T) T {
	if slices.Contains(r.Can.Limits, name) {
		return cmp.Or(asked, otherwise)
	}
	if asked != 0 {
		p.Addf(errors.Unsupported, "omit the limit, or run \"harvest doctor\" to find the missing part",
			"the engine %s cannot limit %s on this machine", r.Engine, name)
	}
	return 0
}

// CheckPath checks a path inside the sandbox.
func CheckPath(p *Problems, name string) {
	if !path.IsAbs(name) || strings.ContainsRune(name, 0) || len(name) > 4096 {
		p.Invalidf("give an absolute path in the sandbox, such as /workspace",
			"invalid path %.200q in the sandbox", name)
	}
}

// Command validates a command, and returns its time limit: timeout, or the default for 0.
func (r Rules) Command(cmd engine.Command, timeout time.Duration) (limit time.Duration, err error) {
	var p Problems
	CheckWhere(&p, cmd.Dir, cmd.User)
	if p.None() {
		p.Add(engine.CheckCommand(cmd))
	}
	if cmd.User != "" && !r.Can.Users {
		p.Addf(errors.Unsupported, "omit user", "the engine %s does not support users on this machine", r.Engine)
	}
	if cmd.Terminal != nil && !r.Can.Terminal {
		p.Addf(errors.Unsupported, "omit terminal", "the engine %s does not support terminals on this machine",
			r.Engine)
	}
	limit = CheckTime(&p, "timeout_seconds", timeout.Seconds(), r.Timeouts.Exec, r.Timeouts.MaxLife)
	return limit, p.Err()
}

// CheckSnapshots adds a problem if this server has no snapshots.
func (r Rules) CheckSnapshots(p *Problems) {
	if !r.Snapshots {
		p.Addf(errors.Unsupported, "copy the files out instead",
			"the engine %s does not support snapshots on this machine", r.Engine)
	}
}

// Network validates a network policy and fills in the default: the internet, if the engine has a network.
func (r Rules) Network(p *Problems, n Network) Network {
	if n.Mode == "" {
		if len(n.Allow) > 0 {
			p.Invalidf(`use "mode":"allow" to reach nothing else, or "mode":"default" to reach them beside the internet`,
				"network.allow needs a network.mode")
			return n
		}
		n.Mode = gateway.ModeNone
		if r.Can.Network {
			n.Mode = gateway.ModeDefault
		}
	}
	_, err := gateway.Compile(n.Mode, n.Allow, n.Deny)
	p.Add(err)
	if err == nil && n.Mode != gateway.ModeNone && !r.Can.Network {
		p.Addf(errors.Unsupported, `use the network mode "none", and copy files in or use volumes`,
			"the engine %s does not support networks on this machine", r.Engine)
	}
	return n
}

func checkPorts(p *Problems, ports []int) {
	if len(ports) > maxPorts {
		p.Invalidf("name at most "+strconv.Itoa(maxPorts), "%d ports are too many", len(ports))
		return
	}
	for i, port := range ports {
		CheckPort(p, port)
		if slices.Contains(ports[:i], port) {
			p.Invalidf("name each port once", "port %d: given twice", port)
		}
	}
}

// CheckPort checks the number of a port.
func CheckPort(p *Problems, port int) {
	if port < 1 || port > 65535 {
		p.Invalidf("give a number from 1 to 65535", "invalid port %d", port)
	}
}
