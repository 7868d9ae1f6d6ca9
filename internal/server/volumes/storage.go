package volumes

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
	s3object "github.com/RelevanceAI/harvest/internal/s3/object"
	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// maxPlan limits the actions of a dry run in a response.
const maxPlan = 10_000

// syncVolume responds with the result of a sync, or with events: first the progress, then the result.
func (s *Service) syncVolume(w http.ResponseWriter, r *http.Request) error {
	if err := s.stored(r); err != nil {
		return err
	}
	var req api.VolumeSyncRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	return s.sync(w, r, r.PathValue("name"), req)
}

// syncSandbox is syncVolume for the volume and the location that a sandbox was created with.
func (s *Service) syncSandbox(w http.ResponseWriter, r *http.Request) error {
	var req api.SandboxSyncRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	found, err := s.Fleet.Get(r.Context(), edge.Account(r), r.PathValue("id"))
	switch {
	case err != nil:
		return err
	case s.Storage == nil:
		return edge.Lacks("S3")
	case found.S3 != nil && found.S3.Mount:
		return errors.Remedy(errors.Newf(errors.Invalid,
			"sandbox %s: mounts S3, which stores files when they are closed", found.ID),
			"close the files, or call fsync")
	case found.S3 == nil:
		return errors.Remedy(errors.Newf(errors.Invalid, "sandbox %s: has no S3 location", found.ID),
			"create a sandbox with s3, or synchronize a volume: harvest volume sync VOLUME")
	}
	// Other clients may have written there, so use the list and not the manifest.
	return s.sync(w, r, found.S3.Volume, api.VolumeSyncRequest{Direction: req.Direction,
		Place: api.Place(found.S3.Place), List: req.Direction != string(plan.Up), DeleteMany: req.DeleteMany})
}

func (s *Service) sync(w http.ResponseWriter, r *http.Request, volume string, req api.VolumeSyncRequest) error {
	vol, err := s.of(r).Open(r.Context(), volume)
	if err != nil {
		return err
	}
	if req.Version != "" && (!req.Versioned || req.Direction != string(plan.Down)) {
		return errors.Remedy(errors.Newf(errors.Invalid, "version %.40q can only be restored", req.Version),
			"set versioned, and the direction down")
	}
	if both := req.Direction == string(plan.Both); both && req.Mirror {
		return errors.Remedy(errors.Newf(errors.Invalid, "a sync in both directions cannot mirror one side"),
			"choose mirror or both: both deletes on either side what the other one deleted")
	} else if !both && req.Conflicts != "" {
		return errors.Remedy(errors.Newf(errors.Invalid, "a sync in one direction has no conflicts"),
			"leave conflicts out, or synchronize in both directions")
	}
	out := api.Synced{Volume: vol.Name(), Direction: req.Direction}
	var mu sync.Mutex
	o := s3sync.Options{Direction: plan.Direction(req.Direction), Mirror: req.Mirror,
		Conflicts: plan.Conflicts(req.Conflicts), Only: req.Path,
		List: req.List, Contents: req.Contents, DryRun: req.DryRun, DeleteMany: req.DeleteMany}
	if req.DryRun {
		o.Plan = func(a plan.Action) {
			mu.Lock()
			defer mu.Unlock()
			if len(out.Plan) < maxPlan {
				out.Plan = append(out.Plan, api.PlannedAction{Action: string(a.Op), Path: a.Path, Size: a.Size,
					Conflict: a.Conflict, Copy: a.Copy, Reason: reason(a.Err)})
			}
		}
	}
	var ev *edge.Events
	if edge.WantsEvents(r) {
		ev = s.NewEvents(w)
		defer ev.Close()
		o.Progress = func(st s3sync.Stats) {
			st.Failures, st.Ignored, st.Decided = nil, nil, nil
			ev.Send(api.EventSyncing, syncStats(st))
		}
	}
	res, err := s.Storage.Sync(r.Context(), edge.Account(r), vol, storage.Request{
		Place: places.Place(req.Place), Versioned: req.Versioned,
		Version: req.Version, Sync: o})
	if err != nil && ev != nil {
		// What the sync decided stays, although it failed, and no later sync reports it.
		if st := syncStats(res.Stats); st.Conflicts+st.Failed > 0 {
			ev.Send(api.EventSyncing, st)
		}
		ev.Send(api.EventProblem, edge.Problem(r.Context(), err))
		return nil
	}
	if err != nil {
		return err
	}
	out.Place, out.Version, out.SyncStats = res.Place, res.Version, syncStats(res.Stats)
	if ev != nil {
		ev.Send(api.EventSynced, out)
		return nil
	}
	return edge.Respond(w, http.StatusOK, out)
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return errors.Message(err)
}

func syncStats(st s3sync.Stats) api.SyncStats {
	out := api.SyncStats{Files: st.Files, Bytes: st.Bytes, Updated: st.Updated, Skipped: st.Skipped,
		Deleted: st.Deleted, Conflicts: st.Conflicts, Failed: st.Failed, Unconditional: st.Unconditional,
		Refusal:  st.Refusal,
		Duration: float64(st.Duration.Microseconds()) / 1000, Rate: st.Rate(), Seen: st.Seen, Total: st.Total,
		Waiting: st.Waiting}
	for _, f := range st.Failures {
		out.Failures = append(out.Failures, api.SyncedPath(f))
	}
	for _, f := range st.Ignored {
		out.Ignored = append(out.Ignored, api.SyncedPath(f))
	}
	for _, f := range st.Decided {
		out.Decided = append(out.Decided, api.SyncedPath(f))
	}
	return out
}

func whereOf(r *http.Request) places.Place {
	q := r.URL.Query()
	return places.Place{Bucket: q.Get("bucket"), Prefix: q.Get("prefix"), Secret: q.Get("secret")}
}

// stored returns an error unless the volume exists and S3 is supported.
func (s *Service) stored(r *http.Request) error {
	if _, err := s.of(r).Open(r.Context(), r.PathValue("name")); err != nil {
		return err
	}
	if s.Storage == nil {
		return edge.Lacks("S3")
	}
	return nil
}

func (s *Service) volumeVersions(w http.ResponseWriter, r *http.Request) error {
	if err := s.stored(r); err != nil {
		return err
	}
	_, all, err := s.Storage.Versions(r.Context(), edge.Account(r), r.PathValue("name"), whereOf(r))
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, all, true, s3object.Version.Name, func(v s3object.Version) api.VolumeVersion {
		return api.VolumeVersion{Version: v.Name(), Created: v.Time.UTC(), Whole: v.Whole}
	})
}

func (s *Service) pruneVersions(w http.ResponseWriter, r *http.Request) error {
	if err := s.stored(r); err != nil {
		return err
	}
	keep, err := strconv.Atoi(r.URL.Query().Get("keep"))
	if err != nil {
		return errors.Newf(errors.Invalid, "invalid keep: want the number of versions to keep")
	}
	if _, err := s.Storage.Prune(r.Context(), edge.Account(r), r.PathValue("name"), whereOf(r),
		keep); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
