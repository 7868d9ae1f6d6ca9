package server

import (
	"net/http"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/image"
)

// images returns those of who asks.
func (s *Server) images(r *http.Request) image.Builder {
	return image.Of(s.opts.Images, account.Owner(accountOf(r.Context())))
}

// buildImage answers with the image, or, as events, first with how it comes along.
func (s *Server) buildImage(w http.ResponseWriter, r *http.Request) error {
	req := api.BuildRequest{Base: "base"}
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	spec, opts := image.Spec{Base: req.Base}, image.BuildOptions{Force: req.Force}
	if !wantsEvents(r) {
		built, err := s.images(r).Build(r.Context(), spec, opts)
		if err != nil {
			return err
		}
		return respond(w, http.StatusCreated, imageOut(built))
	}
	ev := newEvents(w)
	defer ev.close()
	opts.Progress = func(p image.Progress) { ev.send(api.EventProgress, api.Progress(p)) }
	built, err := s.images(r).Build(r.Context(), spec, opts)
	if err != nil {
		ev.send(api.EventProblem, problem(r.Context(), err))
		return nil
	}
	ev.send(api.EventBuilt, imageOut(built))
	return nil
}

func (s *Server) listImages(w http.ResponseWriter, r *http.Request) error {
	found, err := s.images(r).List(r.Context())
	if err != nil {
		return err
	}
	newest := func(i image.Image) string { return i.Built.UTC().Format("2006-01-02T15:04:05.000000000") + i.ID }
	return paged(s, w, r, found, true, newest, imageOut)
}

func (s *Server) getImage(w http.ResponseWriter, r *http.Request) error {
	found, err := s.images(r).Find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, imageOut(found))
}

// deleteImage takes whatever names an image, as getImage does.
func (s *Server) deleteImage(w http.ResponseWriter, r *http.Request) error {
	found, err := s.images(r).Find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := s.images(r).Delete(r.Context(), found.ID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
