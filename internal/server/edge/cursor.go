package edge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// A cursor is the ID after which the next page begins, with a signature that binds it to the list, its filters and
// the account: a cursor of another list would silently skip or repeat elements.

const cursorSum = 16 // bytes

func (s Settings) cursorSum(r *http.Request, after string) []byte {
	query := r.URL.Query()
	query.Del("cursor")
	query.Del("limit")
	mac := hmac.New(sha256.New, s.Key)
	mac.Write([]byte(strings.Join([]string{"cursor", AccountOf(r.Context()), r.URL.Path, query.Encode(),
		after}, "\x00")))
	return mac.Sum(nil)[:cursorSum]
}

// Cursor returns the cursor that continues the list of r after an ID.
func (s Settings) Cursor(r *http.Request, after string) string {
	return base64.RawURLEncoding.EncodeToString(append(s.cursorSum(r, after), after...))
}

// After returns the ID after which the requested page begins; "" for the first page.
func (s Settings) After(r *http.Request) (string, error) {
	text := r.URL.Query().Get("cursor")
	if text == "" {
		return "", nil
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(data) <= cursorSum || !hmac.Equal(data[:cursorSum], s.cursorSum(r, string(data[cursorSum:]))) {
		return "", errors.Remedy(errors.Newf(errors.Invalid, "invalid cursor for this list"),
			"use next_cursor of the previous page with the same filters, or begin without a cursor")
	}
	return string(data[cursorSum:]), nil
}

// Paged answers with the requested page of all. key orders the elements, ascending or, with down, descending.
func Paged[A, B any](s Settings, w http.ResponseWriter, r *http.Request, all []A, down bool, key func(A) string,
	out func(A) B) error {
	limit, err := Number(r, "limit", api.DefaultPage, api.MaxPage)
	if err != nil {
		return err
	}
	after, err := s.After(r)
	if err != nil {
		return err
	}
	if after != "" {
		seen := func(a A) bool { return key(a) <= after }
		if down {
			seen = func(a A) bool { return key(a) >= after }
		}
		all = all[len(all)-len(slices.DeleteFunc(slices.Clone(all), seen)):]
	}
	page := api.List[B]{}
	if len(all) > limit {
		all = all[:limit]
		page.NextCursor = s.Cursor(r, key(all[limit-1]))
	}
	page.Data = Each(all, out)
	return Respond(w, http.StatusOK, page)
}
