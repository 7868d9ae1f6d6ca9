// Package refresh renews the environment from which sandboxes start.
package refresh

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/python"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
)

// StateVolume is the volume that sandboxes of agents share, and StatePath is its mount path.
const (
	StateVolume = "harvest-agent-state"
	StatePath   = "/mnt/state"
)

// Refresh renews the starting point of sandboxes: it rebuilds the base image, runs a program in a sandbox of that
// image, and removes files in the state volume's caches that were not used for a long time. The previous image stays
// in use until the new one is complete.
type Refresh struct {
	Fleet    *fleet.Fleet
	Images   image.Builder // of its engine
	Account  string
	Image    string        // "" means "base"
	CacheAge time.Duration // maximum age of files in the caches since their last change or read; 0 means 7 days
}

// Report is the result of a Refresh, or of its completed part.
type Report struct {
	Status       string    `json:"status"` // "success" or "failed"
	Timestamp    time.Time `json:"timestamp"`
	ImageRebuilt bool      `json:"image_rebuilt"`
	ImageID      string    `json:"image_id,omitempty"`
	ImageBytes   int64     `json:"image_size_bytes,omitempty"`
	Verified     bool      `json:"verified"`         // a program ran in a sandbox of the image
	Python       string    `json:"python,omitempty"` // its version
	CacheFiles   int       `json:"cache_files_removed"`
	CacheBytes   int64     `json:"cache_bytes_freed"`
	CacheKept    string    `json:"cache_kept,omitempty"` // why the caches were not checked
	Seconds      float64   `json:"duration_secs"`
}

const (
	cacheAge     = 7 * 24 * time.Hour
	verifyWithin = 5 * time.Minute
	// outlive is how much longer the sandbox may live, in case it is not destroyed.
	outlive = 10 * time.Minute
)

// verify prints the version of Python, and removes old files from the caches of the state volume, if it is mounted.
// It removes old links to files, keeps links to directories, and follows neither.
const verify = `
import json, os, platform, sys, time
state, age = sys.argv[1], float(sys.argv[2])
files = freed = 0
if state:
    for name in sys.argv[3:]:
        os.makedirs(os.path.join(state, name), exist_ok=True)
    cache, limit, emptied = os.path.join(state, ".cache"), time.time() - age, set()
    for top, dirs, names in os.walk(cache, topdown=False):
        for name in names:
            path = os.path.join(top, name)
            try:
                info = os.lstat(path)
                if max(info.st_mtime, info.st_atime) < limit:
                    os.remove(path)
                    emptied.add(top)
                    files += 1
                    freed += info.st_size
            except FileNotFoundError:
                pass
        # A new directory may belong to somebody who is about to put something there.
        if top != cache and (top in emptied or os.lstat(top).st_mtime < limit):
            try:
                os.rmdir(top)
                emptied.add(os.path.dirname(top))
            except OSError:
                pass
print(json.dumps({"python": platform.python_version(), "files": files, "freed": freed}))
`

// Run runs the refresh. On failure it returns the report of the completed part, and the error names the stage:
// "image", "verify", or a stage of the sandbox such as "create" or "exec".
func (r Refresh) Run(ctx context.Context) (Report, error) {
	start := time.Now()
	report := Report{Status: "failed", Timestamp: time.Now().UTC().Round(0)}
	err := r.run(ctx, &report)
	if err == nil {
		report.Status = "success"
		logf.Infof(ctx, "environment refreshed: image %s, Python %s, %d files of caches removed", report.ImageID,
			report.Python, report.CacheFiles)
	}
	report.Seconds = time.Since(start).Seconds()
	return report, err
}

func (r Refresh) run(ctx context.Context, report *Report) error {
	base := cmp.Or(r.Image, spec.BaseImage)
	rules := r.Fleet.Rules()
	img, err := r.Images.Build(ctx, image.Spec{Base: base},
		image.BuildOptions{Force: true, Credentials: r.Fleet.Credentials(r.Account, "")})
	if err != nil {
		return errors.Stage(errors.Wrapf(err, "rebuild the image %s", base), "image")
	}
	report.ImageRebuilt, report.ImageID, report.ImageBytes = true, img.ID, img.Size
	req := spec.Request{Image: img.ID, Cold: true}
	if rules.Can.Volumes {
		req.Volumes = []spec.Mount{{Name: StateVolume, Path: StatePath}}
	} else {
		report.CacheKept = fmt.Sprintf("the engine %s has no volumes on this machine", rules.Engine)
	}
	found, err := r.verify(ctx, req)
	if err != nil {
		return errors.Stage(err, "verify")
	}
	report.Verified, report.Python, report.CacheFiles, report.CacheBytes = true, found.Python, found.Files, found.Freed
	return nil
}

// verified is the output of the program.
type verified struct {
	Python string
	Files  int
	Freed  int64
}

// verify runs the program in a new sandbox.
func (r Refresh) verify(ctx context.Context, req spec.Request) (verified, error) {
	req.TimeoutSeconds = (verifyWithin + outlive).Seconds()
	sb, err := r.Fleet.Create(ctx, r.Account, req)
	if err != nil {
		return verified{}, err
	}
	defer func() {
		ctx := logf.With(context.WithoutCancel(ctx), "sandbox_id", sb.ID, "account", sb.Account)
		if err := r.Fleet.Destroy(ctx, r.Account, sb.ID); err != nil {
			logf.Errorf(ctx, "destroy the sandbox of a refresh: %v", err)
		}
	}()
	age := fmt.Sprint(cmp.Or(r.CacheAge, cacheAge).Seconds())
	run := fleet.ExecRequest{Args: append([]string{"", age}, volume.StateDirs...), Timeout: verifyWithin}
	if len(req.Volumes) > 0 {
		run.Workdir, run.Args[0] = StatePath, "."
	}
	x, err := python.Exec(ctx, r.Fleet, r.Account, sb.ID, verify, run)
	if err != nil {
		return verified{}, err
	}
	result, err := x.Wait(context.WithoutCancel(ctx)) // when ctx ends, the program is killed
	if err != nil {
		return verified{}, err
	}
	var out verified
	if result.ReturnCode != 0 || json.Unmarshal([]byte(result.Stdout), &out) != nil {
		return verified{}, errors.Newf(errors.Unavailable,
			"a program in a sandbox of the new image ended with %d: %.500s",
			result.ReturnCode, strings.TrimSpace(result.Reason+" "+result.Stderr))
	}
	return out, nil
}
