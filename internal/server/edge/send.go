package edge

import (
	"bytes"
	"io"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// Send responds with out of v, or with err.
func Send[A, B any](w http.ResponseWriter, status int, out func(A) B, v A, err error) error {
	if err != nil {
		return err
	}
	return Respond(w, status, out(v))
}

// NoContent responds to a request without a result.
func NoContent(w http.ResponseWriter, err error) error {
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// SendBytes responds with data, or with err.
func SendBytes(w http.ResponseWriter, media string, data []byte, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(http.StatusOK)
	_, err = w.Write(data)
	return errors.Explainf(err, errors.Canceled, "the client has disconnected")
}

// SendPage sends a page that loads nothing from elsewhere and cannot be framed.
func SendPage(w http.ResponseWriter, page []byte) error {
	return SendForm(w, page, "'none'", "no-referrer")
}

// SendForm sends a page with forms that may be submitted to action. With the referrer policy "no-referrer", browsers
// send no origin with them.
func SendForm(w http.ResponseWriter, page []byte, action, referrer string) error {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action "+action)
	h.Set("Referrer-Policy", referrer)
	_, err := w.Write(page)
	return errors.Wrapf(err, "send a page")
}

// Pour responds with the tar stream that write produces. The response starts after the first block: an error before
// that becomes a problem response.
func Pour(w http.ResponseWriter, r *http.Request, write func(io.Writer) error) error {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(write(pw)) }()
	first := make([]byte, 512)
	n, err := io.ReadFull(pr, first)
	if err != nil {
		pr.Close()
		return err
	}
	return SendTar(w, r, &resumed{io.MultiReader(bytes.NewReader(first[:n]), pr), pr})
}

// resumed is a stream whose beginning was read already.
type resumed struct {
	io.Reader
	io.Closer
}

// SendTar responds with the stream and closes it. If the stream fails, it aborts the connection, so that the client
// notices.
func SendTar(w http.ResponseWriter, r *http.Request, tar io.ReadCloser) error {
	w.Header().Set("Content-Type", api.TypeTar)
	w.WriteHeader(http.StatusOK)
	_, err := io.Copy(w, tar)
	if closing := tar.Close(); err == nil {
		err = closing
	}
	if err != nil && r.Context().Err() != nil {
		return errors.Explainf(err, errors.Canceled, "the client has disconnected")
	}
	return errors.Wrapf(err, "send the archive")
}

// Each returns f of all elements; an empty list, not null, if all is empty.
func Each[A, B any](all []A, f func(A) B) []B {
	out := make([]B, len(all))
	for i, a := range all {
		out[i] = f(a)
	}
	return out
}
