package app

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes"
	modalengine "github.com/RelevanceAI/harvest/internal/engine/modal"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
	"github.com/RelevanceAI/harvest/internal/image"
)

// finding is the result of one check.
type finding = api.Finding

// Examine checks everything that Harvest needs of this machine.
func Examine(ctx context.Context, cfg config.Config) []finding {
	findings := []finding{machine(), dataDirectory(cfg.Data), diskSpace(cfg.Data), running(ctx, cfg.Data)}
	build := []finding{tool("mmdebstrap", "mmdebstrap", "needed to build the base image")}
	if os.Geteuid() != 0 {
		build = append(build, tool("newuidmap", "uidmap", "needed to build images as an ordinary user"),
			subordinateIDs())
	}
	// With an existing image, sandboxes work without the build tools.
	images, err := filepath.Glob(filepath.Join(cfg.Data, "images", "*", "image.json"))
	for _, f := range build {
		f.Needed = err != nil || len(images) == 0
		findings = append(findings, f)
	}
	if img, err := image.Look(ctx, filepath.Join(cfg.Data, "images"), "agent"); err == nil {
		findings = append(findings, agentImage(img, newerAgents(ctx, img, npmRegistry(ctx))))
	}
	if newer := newerProfiles(ctx, cfg.Agents.Versions, npmRegistry(ctx)); len(newer) > 0 {
		findings = append(findings, finding{Name: "agents", OK: true,
			Detail: "newer: agents.versions (HARVEST_AGENTS_VERSIONS) " + strings.Join(newer, ",")})
	}
	findings = append(findings, connections(cfg))
	findings = append(findings, isolation(ctx, cfg)...)
	if text, err := os.ReadFile("/proc/sys/vm/max_map_count"); err == nil {
		findings = append(findings, mappings(string(text)))
	}
	if cfg.S3.Endpoint == config.Embedded {
		findings = append(findings, ownS3(ctx, cfg.Data))
	}
	findings = append(findings, sshKey(cfg))
	if cfg.Engine == kubernetes.Name {
		findings = append(findings, cluster(ctx, cfg)...)
	}
	if f, asked := modalAccount(cfg, os.Getenv); asked {
		findings = append(findings, f)
	}
	if cfg.S3.Bucket != "" && cfg.S3.Endpoint != config.Embedded {
		findings = append(findings, bucketOfS3(cfg.S3,
			func(name string) bool { return hasCredentials(ctx, cfg.Data, name) }))
	}
	server := client.New(cfg.Data)
	defer server.Close()
	if all, err := server.Logins(ctx); err == nil { // a server runs
		findings = append(findings, failedLogins(all)...)
	}
	return append(findings, mountsOfS3())
}

// bucketOfS3 checks for credentials for the configured bucket. Only the first sync shows whether S3 accepts
// them.
func bucketOfS3(c config.S3, has func(secret string) bool) finding {
	name := cmp.Or(c.Secret, storage.DefaultSecret)
	f := finding{Name: "S3", OK: c.Configured(has),
		Detail: fmt.Sprintf("the bucket %s, with the credentials of the secret %s", c.Bucket, name)}
	if !f.OK {
		f.Detail = fmt.Sprintf("the bucket %s, without credentials: "+
			"neither the environment nor a running server has a secret %s", c.Bucket, name)
		f.Remedy = fmt.Sprintf("harvest secret set %s AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY", name)
	}
	return f
}

// hasCredentials reports whether the operator has S3 credentials in a secret: in the environment, or in a
// running server of the data directory dir.
func hasCredentials(ctx context.Context, dir, name string) bool {
	if _, err := secret.FromEnviron(os.Environ())[name].AWS(); err == nil {
		return true
	}
	server := client.New(dir)
	defer server.Close()
	kept, err := server.Secret(ctx, name)
	return err == nil && namesCredentials(kept.Keys)
}

// namesCredentials reports whether a secret with these keys can contain S3 credentials. It does not need the
// values.
func namesCredentials(keys []string) bool {
	pairs := secret.Pairs{}
	for _, key := range keys {
		pairs[key] = "true" // the value that stands for the machine's own credentials
	}
	_, err := pairs.AWS()
	return err == nil
}

// modalAccount checks for Modal credentials if the engine is modal or some credentials are set. Only the start
// of the server shows whether Modal accepts them.
func modalAccount(cfg config.Config, env func(string) string) (f finding, asked bool) {
	f = finding{Name: "Modal", OK: true, Needed: cfg.Engine == "modal",
		Detail: "credentials found; harvest run --engine modal uses them"}
	err := modalengine.Configured(modalOptions(cfg, ""), env)
	if err != nil {
		f.OK, f.Detail, f.Remedy = false, errors.Message(err), errors.RemedyOf(err)
	}
	return f, f.Needed || errors.KindOf(err) != errors.Unauthenticated // incomplete credentials are worth a report
}

// cluster checks the cluster of the engine kubernetes.
func cluster(ctx context.Context, cfg config.Config) []finding {
	var all []finding
	for _, f := range kubernetes.Check(ctx, kubernetesOptions(cfg, &parts{})) {
		all = append(all, finding{Name: f.Name, OK: f.OK, Needed: true, Detail: f.Detail, Remedy: f.Remedy})
	}
	return all
}

// isolation boots a sandbox with this program's own programs.
func isolation(ctx context.Context, cfg config.Config) []finding {
	dir, err := os.MkdirTemp(trialDirectory(cfg.Data), "trial-")
	if err != nil {
		return []finding{{Name: "sandbox", Needed: true, Detail: "cannot create a directory: " + err.Error()}}
	}
	defer os.RemoveAll(dir)
	programs, err := gvisorPrograms(dir)
	if err != nil {
		return []finding{{Name: "sandbox", Needed: true, Detail: errors.Message(err), Remedy: errors.RemedyOf(err)}}
	}
	found := gvisor.Check(ctx, dir, programs.Keeper, programs.Sentry)
	if slices.Contains(cfg.Isolation.Allowed, engine.Container) {
		found = append(found, gvisor.CheckContainers(ctx, dir, programs.Keeper, programs.Tools))
	}
	var all []finding
	for _, f := range found {
		needed := !f.Weaker && cfg.Engine != kubernetes.Name // whose sandboxes are on other machines
		all = append(all, finding{Name: f.Name, OK: f.OK, Needed: needed, Detail: f.Detail, Remedy: f.Remedy})
	}
	return all
}

// trialDirectory is the directory for a trial sandbox's files: the data directory if it exists already.
func trialDirectory(data string) string {
	if unix.Access(data, unix.W_OK) == nil {
		return data
	}
	return os.TempDir()
}

func machine() finding {
	f := finding{Name: "machine", OK: true, Needed: true}
	var name unix.Utsname
	var info unix.Sysinfo_t
	if err := unix.Uname(&name); err != nil || unix.Sysinfo(&info) != nil {
		f.OK, f.Detail = false, "the kernel does not report it"
		return f
	}
	memory := uint64(info.Totalram) * uint64(info.Unit)
	f.Detail = fmt.Sprintf("Linux %s, %s, %d cores, %s of memory", unix.ByteSliceToString(name.Release[:]),
		runtime.GOARCH,
		runtime.NumCPU(), units.BytesSize(float64(memory)))
	return f
}

func dataDirectory(dir string) finding {
	f := finding{Name: "data directory", OK: true, Needed: true, Detail: dir}
	info, err := os.Stat(existing(dir))
	if err != nil {
		f.OK, f.Detail = false, fmt.Sprintf("cannot read %s: %v", dir, err)
		f.Remedy = "choose a directory of your own with --data or HARVEST_DATA"
		return f
	}
	owner := "?"
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok {
		owner = fmt.Sprint(stat.Uid)
		if u, err := user.LookupId(owner); err == nil {
			owner = u.Username
		}
	}
	if existing(dir) != dir {
		f.Detail += ", which does not exist yet"
		if unix.Access(existing(dir), unix.W_OK) != nil {
			f.OK, f.Detail = false, fmt.Sprintf("cannot create %s: %s belongs to %s", dir, existing(dir), owner)
			f.Remedy = "choose a directory of your own with --data or HARVEST_DATA"
		}
		return f
	}
	f.Detail += ", which belongs to " + owner
	if ok && int(stat.Uid) != os.Geteuid() {
		f.OK, f.Remedy = false, "choose a directory of your own with --data or HARVEST_DATA, or run Harvest as "+owner
	}
	return f
}

// existing returns dir, or the nearest directory above it that exists.
func existing(dir string) string {
	for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil || !os.IsNotExist(err) {
			return dir
		}
	}
	return dir
}

func diskSpace(dir string) finding {
	f := finding{Name: "disk space", OK: true, Needed: true}
	s, err := diskStateOf(existing(dir))
	if err != nil {
		f.OK, f.Detail, f.Remedy = false, fmt.Sprintf("unknown: %v", err), "choose another directory with --data"
		return f
	}
	f.Detail = s.text()
	if s.level(0) != diskOK {
		f.OK = false
		f.Remedy = fmt.Sprintf("free some space (%s and %d files are needed), or choose a directory on another disk "+
			"with --data", units.BytesSize(enoughSpace), enoughFiles)
	}
	return f
}

// enoughMappings is far above the default of 65,530 (vm.max_map_count in Linux's admin-guide/sysctl/vm.rst), below
// which programs stay.
const enoughMappings = 1 << 20

// mappings reports the host's limit of memory mappings per process, from vm.max_map_count. Linux answers the system
// call that would exceed it with ENOMEM. gVisor does so only for its own limits: the program in the sandbox dies of
// SIGSEGV, or gVisor ends.
func mappings(text string) finding {
	f := finding{Name: "memory mappings"}
	most, err := strconv.Atoi(strings.TrimSpace(text))
	f.OK = err == nil && most >= enoughMappings
	f.Detail = strings.TrimSpace(text) + " per process"
	if !f.OK {
		f.Detail += "; a program in a sandbox that exceeds them dies of SIGSEGV, where Linux answers ENOMEM"
		f.Remedy = fmt.Sprintf("as root: sysctl -w vm.max_map_count=%d, and the same in a file of /etc/sysctl.d",
			enoughMappings)
	}
	return f
}

func running(ctx context.Context, dir string) finding {
	server := client.New(dir)
	defer server.Close()
	found, err := server.Server(ctx)
	if err != nil {
		return finding{Name: "server", OK: true, Detail: "not running; the next command starts one"}
	}
	f := finding{Name: "server", OK: true, Detail: fmt.Sprintf(
		"process %d, version %s, %s, limits of %s; sandboxes: %d", found.PID, found.Version, found.Isolation,
		cmp.Or(strings.Join(found.Limits, ", "), "-"), found.Sandboxes)}
	if len(found.Missing) > 0 {
		f.Detail += "; " + strings.Join(found.Missing, "; ")
	}
	return f
}

func tool(name, debianPackage, why string) finding {
	path, err := exec.LookPath(name)
	if err != nil {
		return finding{Name: name, Detail: "missing; " + why, Fix: debianPackage,
			Remedy: "apt-get install " + debianPackage + ", or as root: harvest doctor --fix"}
	}
	return finding{Name: name, OK: true, Detail: path}
}

// agentImage reports the parts of the agent image, those that are missing, and the arguments of a build that has newer
// versions of the agents.
func agentImage(img image.Image, newer []string) finding {
	f := finding{Name: "agent image", OK: len(img.Missing) == 0}
	var has, lacks []string
	for _, part := range img.Parts {
		if slices.Contains([]string{"claude", "opencode", "node", "chromium", "gh"}, part.Name) {
			has = append(has, part.Name+" "+part.Version)
		}
	}
	for _, part := range img.Missing {
		lacks = append(lacks, fmt.Sprintf("without %s: %s", part.Name, part.Reason))
	}
	f.Detail = fmt.Sprintf("%s, %s; %s", img.ID, units.BytesSize(float64(img.Size)),
		cmp.Or(strings.Join(has, ", "), "-"))
	if len(newer) > 0 {
		f.Detail += "; newer: harvest image build agent " + strings.Join(newer, " ")
	}
	if !f.OK {
		f.Detail += "; " + strings.Join(lacks, "; ")
		f.Remedy = "with access to their sites: harvest image build agent --force; all else works without them"
	}
	return f
}

// subordinateIDs checks for the subordinate ids that image users get when an unprivileged user builds an image.
func subordinateIDs() finding {
	f := finding{Name: "subordinate ids"}
	u, err := user.Current()
	if err != nil {
		f.Detail, f.Remedy = "the current user is unknown", "create an account for it with useradd"
		return f
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		data, err := os.ReadFile(file)
		if err != nil || !grants(string(data), u.Username, u.Uid) {
			f.Detail = fmt.Sprintf("%s has no line for %s; it is needed to build images", file, u.Username)
			f.Remedy = "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 " + u.Username
			return f
		}
	}
	f.OK, f.Detail = true, u.Username+" has subordinate ids"
	return f
}

func grants(table string, names ...string) bool {
	for line := range strings.Lines(table) {
		who, _, ok := strings.Cut(line, ":")
		for _, name := range names {
			if ok && who == name {
				return true
			}
		}
	}
	return false
}
