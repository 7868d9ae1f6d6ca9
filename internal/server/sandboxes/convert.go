package sandboxes

import (
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/usage"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// The structs of the API are separate from those of the core, so that a change of one does not change the other by
// accident.

func sandboxOut(s record.Sandbox) api.Sandbox {
	return api.Sandbox{
		ID: s.ID, Name: s.Name, Status: string(s.Status), Reason: s.Reason, FailedStage: s.FailedStage,
		OutOfMemory: s.OutOfMemory,
		Engine:      s.Engine, Isolation: s.Isolation, Image: s.Image, ImageID: s.ImageID, Tags: s.Tags,
		Workdir: s.Workdir, User: s.User,
		Volumes: edge.Each(s.Volumes, func(m spec.Mount) api.Mount { return api.Mount(m) }),
		Secrets: s.Secrets, Lent: s.Lent, Network: api.Network(s.Network), Ports: s.Ports,
		PortDetails: edge.Each(s.PortDetails, func(d spec.PortDetail) api.PortDetail { return api.PortDetail(d) }),
		Limits: api.Limits{CPU: s.Limits.CPU, Memory: s.Limits.Memory, Disk: s.Limits.Disk,
			Processes: s.Limits.Processes,
			Files:     s.Limits.Files, VolumeFiles: s.Limits.VolumeFiles},
		GPU:   s.GPU,
		Notes: s.Notes, Stages: edge.Each(s.Stages, func(g record.Stage) api.Stage { return api.Stage(g) }),
		Warm:    s.Warm,
		Created: s.Created.UTC(), Started: s.Started.UTC(), Ended: s.Ended.UTC(), Expires: s.Expires.UTC(),
		LastUsed:           s.LastUsed.UTC(),
		IdleTimeoutSeconds: s.IdleTimeoutSeconds, IdleAction: s.IdleAction, StartCommand: s.StartCommand,
		Suspended: s.Suspended.UTC(), SuspendedSeconds: s.SuspendedSeconds, CostUSD: s.Cost,
		Denials:       denialsOut(s.Denials),
		SnapshotOnEnd: s.SnapshotOnEnd, SnapshotID: s.SnapshotID, SnapshotError: s.SnapshotError,
		S3: s3Out(s.S3),
	}
}

func s3Out(s *record.S3Volume) *api.SandboxS3 {
	if s == nil {
		return nil
	}
	return &api.SandboxS3{S3: api.S3{Place: api.Place(s.Place), MountPath: s.MountPath,
		Init: s.Init, SyncOnTerminate: s.SyncOnTerminate, SyncEverySeconds: s.SyncEverySeconds,
		Mount: s.Mount, ReadOnly: s.ReadOnly}, Volume: s.Volume, SyncError: s.SyncError, MountError: s.MountError}
}

func usageOut(u usage.Usage) api.Used {
	return api.Used{Interval: u.Interval, PeakMemory: u.PeakMemory,
		Samples: edge.Each(u.Samples, func(s usage.Sample) api.UsageSample {
			return api.UsageSample{Time: s.Time.UTC(), CPU: s.CPU, Memory: s.Memory, Received: s.Received, Sent: s.Sent}
		})}
}

func denialsOut(all []engine.Denial) []api.Denial {
	return edge.Each(all, func(d engine.Denial) api.Denial {
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
