package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// BuildImage returns the image, and builds it if it does not exist or if req.Force is set. progress may be nil.
func (c *Client) BuildImage(ctx context.Context, req api.BuildRequest, progress func(api.Progress)) (api.Image, error) {
	var built api.Image
	return built, c.events(ctx, api.Images, req, progress, api.EventBuilt, &built)
}

// Build contains the optional parts of a build.
type Build struct {
	Context  io.Reader          // a tar stream of the build context; nil for none
	Progress func(api.Progress) // may be nil
	Log      func(line string)  // may be nil
}

// BuildImageWith is BuildImage with a build context, and with the output of the build.
func (c *Client) BuildImageWith(ctx context.Context, req api.BuildRequest, with Build) (api.Image, error) {
	var built api.Image
	text, err := json.Marshal(req)
	if err != nil {
		return built, errors.Explainf(err, errors.Invalid, "cannot encode the request as JSON")
	}
	body, media := io.Reader(bytes.NewReader(text)), api.TypeJSON
	if with.Context != nil {
		pr, pw := io.Pipe()
		defer pr.Close()
		form := multipart.NewWriter(pw)
		media = form.FormDataContentType()
		go func() { pw.CloseWithError(writeForm(form, text, with.Context)) }()
		body = pr
	}
	return built, c.follow(ctx, api.Images, body, media, func(name string, data []byte) (bool, error) {
		switch name {
		case api.EventProgress:
			return false, each(data, with.Progress)
		case api.EventLog:
			return false, each(data, func(l api.LogLine) {
				if with.Log != nil {
					with.Log(l.Line)
				}
			})
		case api.EventBuilt:
			return true, broken(json.Unmarshal(data, &built))
		}
		return false, nil
	})
}

// each decodes data and passes it to tell, unless tell is nil.
func each[T any](data []byte, tell func(T)) error {
	var v T
	if err := json.Unmarshal(data, &v); err != nil || tell == nil {
		return broken(err)
	}
	tell(v)
	return nil
}

// writeForm writes the two fields of the form for an image build.
func writeForm(form *multipart.Writer, request []byte, files io.Reader) error {
	if err := form.WriteField(api.FieldRequest, string(request)); err != nil {
		return err
	}
	w, err := form.CreateFormFile(api.FieldContext, "context.tar")
	if err == nil {
		_, err = io.Copy(w, files)
	}
	return errors.Join(err, form.Close())
}

// ExportImage returns an image as an OCI archive, which the caller closes.
func (c *Client) ExportImage(ctx context.Context, ref string) (io.ReadCloser, error) {
	return c.download(ctx, api.Path(api.ImageExport, ref), nil, http.Header{})
}

// CollectImages removes unused images.
func (c *Client) CollectImages(ctx context.Context, req api.CollectRequest) (api.Collected, error) {
	return ask[api.Collected](ctx, c, http.MethodPost, api.ImageCollect, nil, req)
}

// BuildCache returns the entries of the build cache, the last used first.
func (c *Client) BuildCache(ctx context.Context) ([]api.Cached, error) {
	return list[api.Cached](ctx, c, api.BuildCache, nil)
}

// ForgetBuild removes an entry of BuildCache, by its ID or a unique prefix of it.
func (c *Client) ForgetBuild(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.BuildCached, id), nil, nil, nil)
}

// Images returns all images, newest first.
func (c *Client) Images(ctx context.Context) ([]api.Image, error) {
	return list[api.Image](ctx, c, api.Images, nil)
}

// Image returns an image by its ID, a unique prefix of it, a digest, or a name.
func (c *Client) Image(ctx context.Context, ref string) (api.Image, error) {
	return ask[api.Image](ctx, c, http.MethodGet, api.Path(api.Imaged, ref), nil, nil)
}

// DeleteImage deletes an image that no sandbox uses.
func (c *Client) DeleteImage(ctx context.Context, ref string) error {
	return c.call(ctx, http.MethodDelete, api.Path(api.Imaged, ref), nil, nil, nil)
}
