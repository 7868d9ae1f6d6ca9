//go:build !keeper

package inner

var packed []byte
