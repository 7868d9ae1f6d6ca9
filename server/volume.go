package server

import (
	"net/http"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/volume"
)

// volumes returns the volumes of the caller.
func (s *Server) volumes(r *http.Request) volume.Provider {
	return volume.Of(s.opts.Volumes, account.Owner(accountOf(r.Context())))
}

func (s *Server) createVolume(w http.ResponseWriter, r *http.Request) error {
	var req api.VolumeRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	made, err := s.volumes(r).Create(r.Context(), req.Name)
	if err != nil {
		return err
	}
	return respond(w, http.StatusCreated, api.Volume{Name: made.Name()})
}

func (s *Server) listVolumes(w http.ResponseWriter, r *http.Request) error {
	found, err := s.volumes(r).List(r.Context())
	if err != nil {
		return err
	}
	return paged(s, w, r, found, false, func(v volume.Info) string { return v.Name }, volumeOut)
}

func (s *Server) deleteVolume(w http.ResponseWriter, r *http.Request) error {
	force, err := flag(r, "force")
	if err != nil {
		return err
	}
	if s.opts.Storage != nil {
		err = s.opts.Storage.Delete(r.Context(), accountOf(r.Context()), s.volumes(r), r.PathValue("name"), force)
	} else {
		err = s.volumes(r).Delete(r.Context(), r.PathValue("name"))
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) volumeArchiveIn(w http.ResponseWriter, r *http.Request) error {
	vol, err := s.volumes(r).Open(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	if err := vol.CopyIn(r.Context(), r.URL.Query().Get("path"), r.Body); err != nil {
		return err
	}
	if err := vol.Commit(r.Context()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) volumeArchiveOut(w http.ResponseWriter, r *http.Request) error {
	vol, err := s.volumes(r).Open(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	tar, err := vol.CopyOut(r.Context(), r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	return sendTar(w, r, tar)
}

func (s *Server) listVolumeFiles(w http.ResponseWriter, r *http.Request) error {
	vol, err := s.volumes(r).Open(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	entries, err := vol.ReadDir(r.Context(), r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	return paged(s, w, r, entries, false, func(e volume.Entry) string { return e.Name },
		func(e volume.Entry) api.Entry { return api.Entry(e) })
}

func (s *Server) removeVolumeFile(w http.ResponseWriter, r *http.Request) error {
	vol, err := s.volumes(r).Open(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	if err := vol.Remove(r.Context(), r.URL.Query().Get("path")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
