package sandbox

import (
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

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/secret"
	"github.com/RelevanceAI/harvest/volume"
)

// Limits of a Request.
const (
	baseImage  = "base"
	idPrefix   = "sbx_"
	minCPU     = 0.01
	minMemory  = 32 << 20 // with less, even a shell does not start
	minDisk    = 1 << 20
	maxTags    = 64
	maxMounts  = 64
	maxSecrets = 64
	maxRefText = 256
)

var (
	namePattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)
	tagPattern  = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_./-]{0,62}$`)
	hostPattern = pattern.New(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)
	gpuPattern  = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9-]{0,30}(:[1-9][0-9]?)?$`)
	userPattern = pattern.New(`^[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,31}(:[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,31})?$`)
)

// plan is a validated Request with all defaults.
type plan struct {
	Request
	limits     engine.Limits // in force
	cpu        float64       // reserved for quotas and cost, whether or not the engine enforces the limit
	memory     int64
	life, idle time.Duration
	s3         *S3Volume // nil without one
	own        []string  // those of Secrets that Harvest stores
	provided   []string  // those that the engine's provider stores, by their names there

	from *Checkpoint // to restore; nil for none
}

// plan validates req and fills in the defaults. Its error lists all problems.
func (f *Fleet) plan(req Request) (plan, error) {
	var p problems
	checkNames(&p, req)
	checkEnv(&p, req.Env)
	req, s3 := f.withS3(&p, req)
	checkMounts(&p, req.Volumes)
	if req.Engine != "" && req.Engine != f.opts.Engine.Name() {
		p.addf(errors.Unsupported, "omit engine", "unknown engine %.80q; this server has only %s", req.Engine,
			f.opts.Engine.Name())
	}
	if len(req.Volumes) > 0 && !f.caps.Volumes {
		p.addf(errors.Unsupported, "omit volumes", "the engine %s does not support volumes on this machine",
			f.opts.Engine.Name())
	}
	if req.User != "" && !f.caps.Users {
		p.addf(errors.Unsupported, "omit user", "the engine %s does not support users on this machine",
			f.opts.Engine.Name())
	}
	f.checkGPU(&p, req.GPU)
	f.checkHostname(&p, req.Hostname)
	if req.SnapshotOnEnd {
		f.checkSnapshots(&p)
	}
	checkPorts(&p, req.Ports)
	out := plan{Request: req, s3: s3}
	f.checkSecrets(&p, &out)
	out.Image = orDefault(req.Image, baseImage)
	out.Network = f.network(&p, req.Network.Clone())
	out.life = checkTime(&p, "timeout_seconds", req.TimeoutSeconds, f.opts.Timeouts.Life, f.opts.Timeouts.MaxLife)
	out.idle = checkTime(&p, "idle_timeout_seconds", req.IdleTimeoutSeconds, f.opts.Timeouts.Idle,
		f.opts.Timeouts.MaxLife)
	f.checkLimits(&p, &out)
	return out, p.err()
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

func checkNames(p *problems, req Request) {
	if req.Name != "" && (!namePattern().MatchString(req.Name) || strings.HasPrefix(req.Name, idPrefix)) {
		p.invalidf("use 1 to 63 letters, digits, '_', '.' or '-', beginning with a letter or digit and not with \""+idPrefix+"\"",
			"invalid sandbox name %.100q", req.Name)
	}
	if !isText(req.Image, maxRefText) {
		p.invalidf("name an image that \"harvest image ls\" lists", "invalid image %.100q", req.Image)
	}
	checkWhere(p, req.Workdir, req.User)
	checkTags(p, req.Tags)
}

func checkTags(p *problems, tags map[string]string) {
	if len(tags) > maxTags {
		p.invalidf(fmt.Sprintf("use at most %d", maxTags), "%d tags are too many", len(tags))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		if !tagPattern().MatchString(key) {
			p.invalidf("name tags with 1 to 63 letters, digits, '_', '.', '/' or '-'", "invalid tag name %.100q", key)
		}
		if !isText(tags[key], maxRefText) {
			p.invalidf(fmt.Sprintf("use up to %d bytes of text in one line", maxRefText),
				"invalid value of the tag %.100q", key)
		}
	}
}

// checkWhere validates working directory and user, as far as possible without the sandbox.
func checkWhere(p *problems, workdir, user string) {
	if workdir != "" && (!path.IsAbs(workdir) || path.Clean(workdir) != workdir || strings.ContainsRune(workdir, 0)) {
		p.invalidf("give an absolute path without '..', such as /workspace",
			"invalid working directory %.200q", workdir)
	}
	if user != "" && !userPattern().MatchString(user) {
		p.invalidf("give a name or a number, either followed by ':' and a group", "invalid user %.100q", user)
	}
}

func isText(s string, limit int) bool {
	return len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

func checkEnv(p *problems, env map[string]string) {
	before := len(p.texts)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		p.add(engine.CheckEnvName(name))
		if strings.ContainsRune(env[name], 0) {
			p.invalidf("remove the NUL bytes", "the environment variable %.100q contains a NUL byte", name)
		}
	}
	if len(p.texts) == before { // only the size remains to be checked
		p.add(engine.CheckCommand(engine.Command{Args: []string{"any"}, Env: env}))
	}
}

// Directories that the sandbox itself needs: volumes must not be mounted in kernel trees, and must not cover system
// trees.
var (
	kernelTrees = []string{"/proc", "/sys", "/dev"}
	systemTrees = []string{"/", "/bin", "/boot", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr", "/usr/bin",
		"/usr/lib", "/usr/sbin", "/var"}
)

func checkMounts(p *problems, mounts []Mount) {
	if len(mounts) > maxMounts {
		p.invalidf(fmt.Sprintf("use at most %d", maxMounts), "%d volumes are too many", len(mounts))
		return
	}
	for i, m := range mounts {
		p.add(volume.CheckName(m.Name))
		if !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || strings.ContainsRune(m.Path, 0) {
			p.invalidf("give an absolute path without '..' and without a trailing '/', such as /data",
				"volume %.130q: invalid mount point %.200q", m.Name, m.Path)
			continue
		}
		below := func(tree string) bool { return within(tree, m.Path) }
		if slices.Contains(systemTrees, m.Path) || slices.ContainsFunc(kernelTrees, below) {
			p.invalidf("mount it at another path, such as /data",
				"volume %.130q: would cover %s, which the sandbox needs", m.Name, m.Path)
		}
		for _, other := range mounts[:i] {
			if path.IsAbs(other.Path) && (within(other.Path, m.Path) || within(m.Path, other.Path)) {
				p.invalidf("mount volumes beside each other", "the mount points %.200q and %.200q overlap",
					other.Path, m.Path)
			}
		}
	}
}

// within reports whether the clean path p is tree or below it.
func within(tree, p string) bool {
	return p == tree || strings.HasPrefix(p, strings.TrimSuffix(tree, "/")+"/")
}

// checkSecrets separates the secrets by where they are stored: modal:NAME is one that the engine modal's provider
// stores.
func (f *Fleet) checkSecrets(p *problems, out *plan) {
	if len(out.Secrets) > maxSecrets {
		p.invalidf(fmt.Sprintf("name at most %d", maxSecrets), "%d secrets are too many", len(out.Secrets))
		return
	}
	for _, name := range out.Secrets {
		provider, rest, provided := strings.Cut(name, ":")
		switch {
		case !provided:
			out.own = append(out.own, name)
		case provider != f.opts.Engine.Name() || !f.caps.Secrets:
			p.addf(errors.Unsupported, "name a secret of Harvest's, which `harvest secret ls` lists",
				"secrets of %.80q are not supported for sandboxes of the engine %s", provider, f.opts.Engine.Name())
			continue
		default:
			out.provided, name = append(out.provided, rest), rest
		}
		p.add(secret.CheckName(name))
	}
	if len(out.own) > 0 && f.opts.Secrets == nil {
		p.addf(errors.Unsupported, "omit secrets", "this server does not support secrets")
	}
}

// checkProvided denies the provider's secrets to all accounts except that of the server's operator, who owns the
// account at the provider.
func checkProvided(owner string, p plan) error {
	if len(p.provided) == 0 || owner == account.Personal {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Denied, "secrets of the engine's provider are for the account %s only",
		account.Personal), "store it with `harvest secret set`, and name that secret")
}

// checkTime returns the time limit for seconds.
func checkTime(p *problems, field string, seconds float64, otherwise, most time.Duration) time.Duration {
	if seconds == 0 {
		return otherwise
	}
	if math.IsNaN(seconds) || seconds < 0 || seconds > most.Seconds() {
		p.invalidf(fmt.Sprintf("give a number from 0, which means the default, to %.0f", most.Seconds()),
			"invalid %s: %s", field, strconv.FormatFloat(seconds, 'f', -1, 64))
		return otherwise
	}
	return time.Duration(seconds * float64(time.Second))
}

// checkHostname rejects a host name that the engine would ignore.
func (f *Fleet) checkHostname(p *problems, name string) {
	switch {
	case name == "":
	case !hostPattern().MatchString(name):
		p.invalidf("use 1 to 63 letters, digits or '-', not at the ends", "invalid host name %.100q", name)
	case !f.caps.Hostname:
		p.addf(errors.Unsupported, "omit hostname", "the engine %s does not support host names of sandboxes",
			f.opts.Engine.Name())
	}
}

func (f *Fleet) checkGPU(p *problems, gpu string) {
	switch {
	case gpu == "":
	case !gpuPattern().MatchString(gpu):
		p.invalidf("name a kind, such as T4, or A100:2 for two", "invalid GPU %.100q", gpu)
	case !f.caps.GPUs:
		p.addf(errors.Unsupported, "omit gpu, or use an engine with GPUs, such as modal",
			"the engine %s does not support GPUs", f.opts.Engine.Name())
	}
}

// checkLimits determines the limits: the requested value, else the default if the engine can enforce it.
func (f *Fleet) checkLimits(p *problems, out *plan) {
	asked := engine.Limits{CPU: out.CPU, Memory: out.Memory, Disk: out.Disk, Processes: out.Processes, Files: out.Files,
		VolumeFiles: out.VolumeFiles}
	machine, defaults := f.opts.Machine, f.opts.Defaults
	if math.IsNaN(asked.CPU) || asked.CPU < 0 || (asked.CPU > 0 && asked.CPU < minCPU) || asked.CPU > machine.CPU {
		p.invalidf(fmt.Sprintf("give a number of cores from %v to %v, or 0 for the default", minCPU, machine.CPU),
			"invalid cpu: %v; this machine has %v cores", asked.CPU, machine.CPU)
	}
	if asked.Memory < 0 || (asked.Memory > 0 && asked.Memory < minMemory) || asked.Memory > machine.Memory {
		p.invalidf(fmt.Sprintf("give from %s to %s, or 0 for the default", units.BytesSize(minMemory),
			units.BytesSize(float64(machine.Memory))),
			"invalid memory_bytes: %d (%s); this machine has %s", asked.Memory, units.BytesSize(float64(asked.Memory)),
			units.BytesSize(float64(machine.Memory)))
	}
	if asked.Disk < 0 || (asked.Disk > 0 && asked.Disk < minDisk) {
		p.invalidf("give at least "+units.BytesSize(minDisk)+", or 0 for the default",
			"invalid disk_bytes: %d", asked.Disk)
	}
	if asked.Processes < 0 {
		p.invalidf("give a positive number, or 0 for the default", "invalid processes: %d", asked.Processes)
	}
	if asked.Files < 0 {
		p.invalidf("give a positive number, or 0 for the default", "invalid open_files: %d", asked.Files)
	}
	if asked.VolumeFiles < 0 || asked.VolumeFiles > defaults.VolumeFiles {
		p.invalidf(fmt.Sprintf("give a number up to %d, or 0 for that; the operator can raise limits.volume_files",
			defaults.VolumeFiles), "invalid volume_files: %d", asked.VolumeFiles)
	}
	out.limits.CPU = limit(f, p, "cpu", asked.CPU, defaults.CPU)
	out.limits.Memory = limit(f, p, "memory", asked.Memory, defaults.Memory)
	out.limits.Disk = limit(f, p, "disk", asked.Disk, defaults.Disk)
	out.limits.Processes = limit(f, p, "processes", asked.Processes, defaults.Processes)
	out.limits.Files = limit(f, p, "files", asked.Files, defaults.Files)
	out.limits.VolumeFiles = limit(f, p, "volume_files", asked.VolumeFiles, defaults.VolumeFiles)
	out.cpu, out.memory = orDefault(asked.CPU, defaults.CPU), orDefault(asked.Memory, defaults.Memory)
}

// limit returns the limit in force. If the engine cannot enforce it, according to its Capabilities, a default is
// dropped, and a requested limit is refused.
func limit[T int | int64 | float64](f *Fleet, p *problems, name string, asked, otherwise T) T {
	if slices.Contains(f.caps.Limits, name) {
		return orDefault(asked, otherwise)
	}
	if asked != 0 {
		p.addf(errors.Unsupported, "omit the limit, or run \"harvest doctor\" to find the missing part",
			"the engine %s cannot limit %s on this machine", f.opts.Engine.Name(), name)
	}
	return 0
}

// checkPath checks a path inside the sandbox.
func checkPath(p *problems, name string) {
	if !path.IsAbs(name) || strings.ContainsRune(name, 0) || len(name) > 4096 {
		p.invalidf("give an absolute path in the sandbox, such as /workspace",
			"invalid path %.200q in the sandbox", name)
	}
}
