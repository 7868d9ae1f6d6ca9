package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
)

// webhookTime is how long a request may take.
const webhookTime = 15 * time.Second

// keyPrefix marks a key in base64, as in the specification of Standard Webhooks.
const keyPrefix = "whsec_"

// Webhook posts items to an address, signed as in Standard Webhooks (https://www.standardwebhooks.com).
type Webhook struct {
	Choice
	address string
	key     []byte // nil: requests are not signed
	client  http.Client
}

// NewWebhook returns the receiver at an address. Requests are signed with secret: the bytes of it, or those of the
// base64 after "whsec_"; "" means no signature. transport connects to the address. Errors do not contain the address,
// whose path and query may be secret.
func NewWebhook(choice Choice, address, secret string, transport http.RoundTripper) (*Webhook, error) {
	key := []byte(secret)
	if text, encoded := strings.CutPrefix(secret, keyPrefix); encoded {
		var err error
		if key, err = base64.StdEncoding.DecodeString(text); err != nil || len(key) == 0 {
			return nil, errors.Newf(errors.Invalid, "the secret after %s is not base64", keyPrefix)
		}
	}
	return &Webhook{choice, address, key, http.Client{Transport: transport, Timeout: webhookTime,
		// The address is the operator's choice, and its server must not choose another one.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Send implements inbox.Receiver. It returns Invalid if the server refuses the item itself.
func (w *Webhook) Send(ctx context.Context, item inbox.Item) error {
	body, err := encode(item)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.address, bytes.NewReader(body))
	if err != nil {
		return errors.Newf(errors.Invalid, "invalid address of the webhook")
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "harvest")
	req.Header.Set("Webhook-Id", item.ID)
	req.Header.Set("Webhook-Timestamp", at)
	if len(w.key) > 0 {
		mac := hmac.New(sha256.New, w.key)
		mac.Write([]byte(item.ID + "." + at + "."))
		mac.Write(body)
		req.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	resp, err := w.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the address
		}
		return errors.Explainf(err, errors.Unavailable, "the webhook cannot be reached")
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
	kind := errors.Unavailable
	switch resp.StatusCode {
	case http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent:
		return nil
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		kind = errors.Invalid // the server refuses this item, not the request as such
	}
	return errors.Newf(kind, "the webhook answers %d", resp.StatusCode)
}
