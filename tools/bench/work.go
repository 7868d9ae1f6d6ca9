package main

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// host is the peer of P8: the same programs on the same files, practically without isolation.
const host = "host"

// jobScript does one step of one job: `sh job.sh JOB prepare`, and then `sh job.sh JOB run`, in an empty directory.
//
//go:embed job.sh
var jobScript string

// jobs are the names of the jobs in jobScript.
var jobs = []string{"git", "compileall", "gcc", "sqlite", "tar", "files", "spawn"}

// jobDir is an empty directory of the image.
const jobDir = "/srv"

// P8
func benchWork(ctx context.Context, l *lab, r *recorder) error {
	if err := l.use(ctx, 0); err != nil {
		return err
	}
	noHost := l.noBwrap(ctx)
	if noHost != nil {
		r.missing(host, noHost)
	}
	var ratios, ofContainers []float64
	for _, job := range jobs {
		m := r.measure(job, "s")
		work := func(kind string) func(context.Context) (sample, error) {
			return func(ctx context.Context) (sample, error) { return l.workInside(ctx, job, kind) }
		}
		sides := r.inContainer([]side{{harvest, work(engine.GVisor)}}, work(engine.Container))
		if noHost == nil {
			sides = append(sides, side{host, func(ctx context.Context) (sample, error) {
				return l.workOnHost(ctx, job)
			}})
		}
		if err := r.turns(ctx, r.count(1, 5), []*Measure{m}, sides...); err != nil {
			return err
		}
		m.finish()
		if s := m.side(host); s != nil && s.Ratio > 0 {
			ratios = append(ratios, s.Ratio)
			if c := m.side(container); c != nil && c.Ratio > 0 {
				ofContainers = append(ofContainers, s.Ratio/c.Ratio)
			}
		}
	}
	if len(ratios) == len(jobs) {
		mean := r.measure("geometric mean of the ratios", "×")
		mean.Aim = &Aim{AtMost: 1.5}
		mean.add(harvest, geometricMean(ratios))
		if len(ofContainers) == len(jobs) {
			mean.add(container, geometricMean(ofContainers))
		}
	}
	return nil
}

// workInside runs a job in a sandbox of its own, of a kind, that may use the whole machine.
func (l *lab) workInside(ctx context.Context, job, kind string) (s sample, err error) {
	sb, destroy, err := l.create(ctx, spec.Request{Isolation: kind, CPU: float64(runtime.NumCPU()),
		Memory: 2 * l.limits.Memory})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, destroy()) }()
	step := func(name string) error {
		return l.exec(ctx, sb.ID, fleet.ExecRequest{Args: jobCommand(job, name), Workdir: jobDir})
	}
	return steps(job, step)
}

// workOnHost runs a job in a directory of its own. The directory stays until the end, because creating files is
// slow where others were just deleted.
func (l *lab) workOnHost(ctx context.Context, job string) (sample, error) {
	if err := os.MkdirAll(filepath.Join(l.dir, "host"), 0o755); err != nil {
		return nil, errors.Wrapf(err, "make a directory")
	}
	dir, err := os.MkdirTemp(filepath.Join(l.dir, "host"), job+"-")
	if err != nil {
		return nil, errors.Wrapf(err, "make a directory")
	}
	temp := filepath.Join(dir, ".tmp")
	if err := os.Mkdir(temp, 0o777); err != nil {
		return nil, errors.Wrapf(err, "make a directory")
	}
	options := []string{"--bind", dir, jobDir, "--bind", temp, "/tmp", "--chdir", jobDir}
	return steps(job, func(name string) error {
		out, err := l.bwrap(ctx, options, jobCommand(job, name)...).CombinedOutput()
		if err != nil {
			return errors.Errorf("%s on the host: %v: %s", job, err, out)
		}
		return nil
	})
}

// steps prepares a job and measures the job itself, in seconds.
func steps(job string, step func(name string) error) (sample, error) {
	if err := step("prepare"); err != nil {
		return nil, err
	}
	begin := time.Now()
	err := step("run")
	return sample{job: time.Since(begin).Seconds()}, err
}

func jobCommand(job, step string) []string {
	return []string{"sh", "-euc", jobScript, "job.sh", job, step, strconv.Itoa(runtime.NumCPU())}
}
