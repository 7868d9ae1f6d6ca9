// Package volumes serves volumes, their files, and their copies in S3.
package volumes

import (
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// Service serves the routes for volumes and their copies in S3.
type Service struct {
	edge.Settings
	Fleet   *fleet.Fleet // for the volumes of sandboxes
	Volumes volume.Provider
	Storage *storage.Manager // nil: S3 is not supported
}

// Routes returns one row per route.
func (s *Service) Routes() []edge.Route {
	const read, write = account.Read, account.Write
	return []edge.Route{
		{Method: "POST", Path: api.Volumes, Handle: s.createVolume, Scope: write,
			Summary: "Create a volume if it is missing", In: api.VolumeRequest{},
			Out: api.Volume{}, Status: 201},
		{Method: "GET", Path: api.Volumes, Handle: s.listVolumes, Scope: read, Summary: "List volumes by name",
			Query: edge.QueryPage, Out: api.List[api.Volume]{}, Status: 200},
		{Method: "DELETE", Path: api.VolumeNamed, Handle: s.deleteVolume, Scope: write,
			Summary: "Delete a volume and its files",
			Query:   "force: delete the volume even if some of its files are not in S3 yet, which are lost",
			Status:  204},
		{Method: "PUT", Path: api.VolumeArchive, Handle: s.volumeArchiveIn, Scope: write,
			Summary: "Unpack a tar stream in a directory", Query: edge.QueryPath,
			RawIn: api.TypeTar, Status: 204},
		{Method: "GET", Path: api.VolumeArchive, Handle: s.volumeArchiveOut, Scope: read,
			Summary: "Get a file or directory as a tar stream", Query: edge.QueryPath,
			RawOut: api.TypeTar, Status: 200},
		{Method: "GET", Path: api.VolumeList, Handle: s.listVolumeFiles, Scope: read, Summary: "List a directory",
			Query: edge.QueryPath + "; " + edge.QueryPage,
			Out:   api.List[api.Entry]{}, Status: 200},
		{Method: "DELETE", Path: api.VolumeFiles, Handle: s.removeVolumeFile, Scope: write,
			Summary: "Remove a file or directory", Query: edge.QueryPath, Status: 204},

		{Method: "POST", Path: api.VolumeSync, Handle: s.syncVolume, Scope: write,
			Summary: "Synchronize a volume with S3, in the direction up, down or both",
			In:      api.VolumeSyncRequest{}, Out: api.Synced{}, Status: 200,
			Events: "volume.syncing, then volume.synced or error"},
		{Method: "GET", Path: api.VolumeVersions, Handle: s.volumeVersions, Scope: read,
			Summary: "List the versions of a volume in S3, newest first",
			Query: "bucket: a bucket of the account (default: the server's); prefix: prefix in the bucket; " +
				"secret: secret with its credentials; " + edge.QueryPage, Out: api.List[api.VolumeVersion]{},
			Status: 200},
		{Method: "DELETE", Path: api.VolumeVersions, Handle: s.pruneVersions, Scope: write,
			Summary: "Delete all but the latest versions of a volume",
			Query: "keep: number of versions to keep, at least 1; bucket: a bucket of the account (default: the " +
				"server's); prefix: prefix in the bucket; secret: secret with its credentials", Status: 204},
		{Method: "POST", Path: api.SandboxSync, Handle: s.syncSandbox, Scope: write,
			Summary: "Synchronize a sandbox's volume with S3, in the direction up, down or both",
			In:      api.SandboxSyncRequest{}, Out: api.Synced{}, Status: 200,
			Events: "volume.syncing, then volume.synced or error"},
	}
}

// of returns the volumes of the caller.
func (s *Service) of(r *http.Request) volume.Provider {
	return volume.Of(s.Volumes, account.Owner(edge.Account(r)))
}

func (s *Service) createVolume(w http.ResponseWriter, r *http.Request) error {
	var req api.VolumeRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	made, err := s.of(r).Create(r.Context(), req.Name)
	if err != nil {
		return err
	}
	return edge.Respond(w, http.StatusCreated, api.Volume{Name: made.Name()})
}

func (s *Service) listVolumes(w http.ResponseWriter, r *http.Request) error {
	found, err := s.of(r).List(r.Context())
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, found, false, func(v volume.Info) string { return v.Name }, volumeOut)
}

func (s *Service) deleteVolume(w http.ResponseWriter, r *http.Request) error {
	force, err := edge.Flag(r, "force")
	if err != nil {
		return err
	}
	if s.Storage != nil {
		err = s.Storage.Delete(r.Context(), edge.Account(r), s.of(r), r.PathValue("name"), force)
	} else {
		err = s.of(r).Delete(r.Context(), r.PathValue("name"))
	}
	return edge.NoContent(w, err)
}

func (s *Service) volumeArchiveIn(w http.ResponseWriter, r *http.Request) error {
	vol, err := s.of(r).Open(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	if err := vol.CopyIn(r.Context(), r.URL.Query().Get("path"), r.Body); err != nil {
		return err
	}
	return edge.NoContent(w, vol.Commit(r.Context()))
}

func (s *Service) volumeArchiveOut(w http.ResponseWriter, r *http.Request) error {
	vol, err := s.of(r).Open(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	tar, err := vol.CopyOut(r.Context(), r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	return edge.SendTar(w, r, tar)
}

func (s *Service) listVolumeFiles(w http.ResponseWriter, r *http.Request) error {
	vol, err := s.of(r).Open(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	entries, err := vol.ReadDir(r.Context(), r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, entries, false, func(e volume.Entry) string { return e.Name },
		func(e volume.Entry) api.Entry { return api.Entry(e) })
}

func (s *Service) removeVolumeFile(w http.ResponseWriter, r *http.Request) error {
	vol, err := s.of(r).Open(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	return edge.NoContent(w, vol.Remove(r.Context(), r.URL.Query().Get("path")))
}

func volumeOut(v volume.Info) api.Volume {
	return api.Volume{Name: v.Name, Created: v.Created.UTC(), Size: v.Size, Files: v.Files}
}
