#!/bin/sh
set -e
echo "installing hooks"
