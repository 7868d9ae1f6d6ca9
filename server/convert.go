package server

import (
	"encoding/json"
	"time"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/volume"
)

// The structs of the API are separate from those of the core, so that a change of one does not change the other by
// accident.

func sandboxOut(s sandbox.Sandbox) api.Sandbox {
	return api.Sandbox{
		ID: s.ID, Name: s.Name, Status: string(s.Status), Reason: s.Reason, FailedStage: s.FailedStage,
		OutOfMemory: s.OutOfMemory,
		Engine:      s.Engine, Isolation: s.Isolation, Image: s.Image, ImageID: s.ImageID, Tags: s.Tags,
		Workdir: s.Workdir, User: s.User,
		Volumes: each(s.Volumes, func(m sandbox.Mount) api.Mount { return api.Mount(m) }),
		Secrets: s.Secrets, Network: api.Network(s.Network), Ports: s.Ports,
		Limits: api.Limits{CPU: s.Limits.CPU, Memory: s.Limits.Memory, Disk: s.Limits.Disk,
			Processes: s.Limits.Processes,
			Files:     s.Limits.Files, VolumeFiles: s.Limits.VolumeFiles},
		GPU:    s.GPU,
		Stages: each(s.Stages, func(g sandbox.Stage) api.Stage { return api.Stage(g) }), Warm: s.Warm,
		Created: s.Created.UTC(), Started: s.Started.UTC(), Ended: s.Ended.UTC(), Expires: s.Expires.UTC(),
		LastUsed:           s.LastUsed.UTC(),
		IdleTimeoutSeconds: s.IdleTimeoutSeconds, CostUSD: s.Cost,
		Denials:       denialsOut(s.Denials),
		SnapshotOnEnd: s.SnapshotOnEnd, SnapshotID: s.SnapshotID, SnapshotError: s.SnapshotError,
		S3: s3Out(s.S3),
	}
}

func s3Out(s *sandbox.S3Volume) *api.SandboxS3 {
	if s == nil {
		return nil
	}
	return &api.SandboxS3{S3: api.S3{Bucket: s.Bucket, Prefix: s.Prefix, MountPath: s.MountPath,
		Init: s.Init, SyncOnTerminate: s.SyncOnTerminate, SyncEverySeconds: s.SyncEverySeconds, Secret: s.Secret,
		Mount: s.Mount, ReadOnly: s.ReadOnly}, Volume: s.Volume, SyncError: s.SyncError, MountError: s.MountError}
}

func usageOut(u sandbox.Usage) api.Used {
	return api.Used{Interval: u.Interval, PeakMemory: u.PeakMemory,
		Samples: each(u.Samples, func(s sandbox.Sample) api.UsageSample {
			return api.UsageSample{Time: s.Time.UTC(), CPU: s.CPU, Memory: s.Memory, Received: s.Received, Sent: s.Sent}
		})}
}

func denialsOut(all []engine.Denial) []api.Denial {
	return each(all, func(d engine.Denial) api.Denial {
		return api.Denial{Time: d.Time.UTC(), Protocol: d.Protocol, Domain: d.Domain, Address: d.Address, Port: d.Port,
			Reason: d.Reason, Count: d.Count}
	})
}

func processOut(p engine.ProcessInfo) api.Process {
	out := api.Process{ID: p.ID, Args: p.Args, Terminal: p.Terminal, Started: p.Started.UTC()}
	if p.Exit != nil {
		exit := api.Exit(*p.Exit)
		out.Exit = &exit
	}
	return out
}

func imageOut(i image.Image) api.Image {
	part := func(p image.Part) api.Part { return api.Part(p) }
	out := api.Image{
		Kind: api.KindBuilt, ID: i.ID, Digest: i.Digest, Names: each(i.Names, func(n string) string { return n }),
		Base: i.Spec.Base,
		Env:  i.Config.Env, User: i.Config.User, Workdir: i.Config.Dir, Size: i.Size, Built: i.Built.UTC(),
		BuildSeconds: i.BuildTime.Seconds(), Parts: each(i.Parts, part), Missing: each(i.Missing, part),
		Platform: i.Spec.Platform, Command: i.Config.Cmd, Entrypoint: i.Config.Entrypoint, Labels: i.Config.Labels,
		Ports: i.Config.Ports, Volumes: i.Config.Volumes, StopSignal: i.Config.StopSignal,
		HealthCheck: healthOut(i.Config.Healthcheck), OnBuild: i.Config.OnBuild,
	}
	if s := i.Snapshot; s != nil {
		origin := func(o image.Origin) api.Origin {
			return api.Origin{Image: o.Image, Sandbox: o.Sandbox, Time: o.Time.UTC()}
		}
		out.Kind, out.Snapshot = api.KindSnapshot, &api.Snapshot{Parent: i.Spec.Parent, Path: s.Path, Size: s.Size,
			Lineage: each(s.Lineage, origin)}
	}
	return out
}

// oneImageOut is imageOut with the history.
func oneImageOut(i image.Image) api.Image {
	out := imageOut(i)
	for _, h := range i.Config.History {
		out.History = append(out.History, api.History{Created: h.Created, CreatedBy: h.By, Comment: h.Comment,
			Empty: h.Empty})
	}
	return out
}

// healthOut returns a health check in the form of an image's configuration, whose times are nanoseconds.
func healthOut(text json.RawMessage) *api.HealthCheck {
	var h struct {
		Test                                          []string
		Interval, Timeout, StartPeriod, StartInterval time.Duration
		Retries                                       int
	}
	if len(text) == 0 || json.Unmarshal(text, &h) != nil {
		return nil
	}
	return &api.HealthCheck{Test: h.Test, IntervalSeconds: h.Interval.Seconds(), TimeoutSeconds: h.Timeout.Seconds(),
		StartPeriodSeconds: h.StartPeriod.Seconds(), StartIntervalSeconds: h.StartInterval.Seconds(),
		Retries: h.Retries}
}

func volumeOut(v volume.Info) api.Volume {
	return api.Volume{Name: v.Name, Created: v.Created.UTC(), Size: v.Size, Files: v.Files}
}

// each returns f of all elements; an empty list, not null, if all is empty.
func each[A, B any](all []A, f func(A) B) []B {
	out := make([]B, len(all))
	for i, a := range all {
		out[i] = f(a)
	}
	return out
}
