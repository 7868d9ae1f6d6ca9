package sessions

import (
	"io"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/session/uploads"
)

func (s *Service) uploadRoutes() []edge.Route {
	return []edge.Route{
		{Method: "POST", Path: api.Uploads, Handle: s.addUpload, Scope: account.Exec, Raw: true,
			Summary: "Send a file ahead of a session: a bundle of commits, or a patch with uncommitted changes. " +
				"Sessions can use it for an hour",
			RawIn: api.TypeBytes, Out: api.FileUpload{}, Status: 201},
		{Method: "DELETE", Path: api.Upload, Handle: s.removeUpload, Scope: account.Exec,
			Summary: "Remove a file that was sent ahead; sessions that began with it keep it", Status: 204},
	}
}

func (s *Service) addUpload(w http.ResponseWriter, r *http.Request) error {
	made, err := s.Sessions.Uploads().Add(r.Context(), edge.Account(r), body{r})
	return edge.Send(w, http.StatusCreated, uploadOut, made, err)
}

func uploadOut(u uploads.Upload) api.FileUpload {
	return api.FileUpload{ID: u.ID, Size: u.Size, Expires: u.Expires.UTC()}
}

// body reads the body of a request.
type body struct{ r *http.Request }

func (b body) Read(p []byte) (int, error) {
	n, err := b.r.Body.Read(p)
	if err != nil && err != io.EOF {
		err = edge.BrokeOff(err, "the upload")
	}
	return n, err
}

func (s *Service) removeUpload(w http.ResponseWriter, r *http.Request) error {
	return edge.NoContent(w, s.Sessions.Uploads().Remove(edge.Account(r), r.PathValue("id")))
}
