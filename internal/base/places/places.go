// Package places names places in S3, for packages that do not go there.
package places

// Place is a place in S3 as a user names it: it holds no credentials, and may be stored.
type Place struct {
	Bucket string `json:"bucket,omitempty"` // "" is the server's own, where each volume has a separate prefix
	Prefix string `json:"prefix,omitempty"` // of all keys; "" is the whole bucket
	Secret string `json:"secret,omitempty"` // secret with the credentials; "" is the default one
}
